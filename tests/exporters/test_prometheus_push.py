"""Metrics of batch jobs: text file and Pushgateway."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporters.prometheus import PushgatewayPublisher, TextFilePublisher
from ckpt_observe.metricstore.snapshot import gather as gather_all


@pytest.fixture
def gather(tmp_path):
    return lambda: gather_all(tmp_path / "state", "1")


@pytest.fixture
def server():
    """Answers with `status` and records requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            server.requests.append(
                (self.command, self.path, self.rfile.read(int(self.headers["Content-Length"])), self.headers["Authorization"])
            )
            self.send_response(server.status)
            self.send_header("Location", f"{server.url}/elsewhere")
            self.end_headers()

        do_GET = do_PUT  # noqa: N815

        def log_message(self, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.status, server.url = [], 200, f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def names(page):
    return {family.name for family in text_string_to_metric_families(page.decode())}


def test_file_is_complete_and_readable(tmp_path, gather):
    """Any user can read a complete file, and no other file remains in its directory."""
    path = tmp_path / "out" / "job.prom"
    path.parent.mkdir()
    publisher = TextFilePublisher(str(path))
    publisher.publish(gather)
    publisher.publish(gather)
    assert "ckpt_observe_build_info" in names(path.read_bytes())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_missing_directory_is_an_error(tmp_path, gather):
    """Publishing fails while the directory does not exist."""
    with pytest.raises(OSError):
        TextFilePublisher(str(tmp_path / "none" / "job.prom")).publish(gather)


def test_metrics_are_pushed_under_the_job(server, gather):
    """PUT replaces the metrics of the job. A job name with a slash is base64-encoded, as the gateway requires."""
    PushgatewayPublisher(server.url + "/", "nightly/eu").publish(gather)
    [(method, path, body, _)] = server.requests
    assert (method, path) == ("PUT", "/metrics/job@base64/bmlnaHRseS9ldQ==")
    assert "ckpt_observe_build_info" in names(body)


def test_credentials_are_sent_as_a_header(server, gather):
    """Credentials are removed from the URL, which error messages contain."""
    PushgatewayPublisher(server.url.replace("//", "//me:p%40ss@"), "job").publish(gather)
    assert [(path, authorization) for _, path, _, authorization in server.requests] == [("/metrics/job/job", "Basic bWU6cEBzcw==")]


@pytest.mark.parametrize("status", [302, 400, 500])
def test_gateway_that_rejects_the_metrics(server, gather, status):
    """An error status or redirect raises ExporterRetryError; redirects are not followed."""
    server.status = status
    with pytest.raises(ExporterRetryError, match=f"answered {status}"):
        PushgatewayPublisher(server.url, "job").publish(gather)
    assert len(server.requests) == 1


BUILD_AND_PUBLISH = """
import sys
from pathlib import Path
from ckpt_observe import config, exporter_selection
settings = config.read(exporters="prometheus", dir=sys.argv[1])
publishers = exporter_selection.build_exporters(settings)[0]._publishers
assert len(publishers) == 2
before = set(sys.modules)
for publisher in publishers:
    try:
        publisher.publish(lambda: exporter_selection.build_exporters(settings)[0]._gather())
    except Exception as error:
        print(type(error).__name__)
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in {"requests", "urllib3", "prometheus_client", "ssl"}))
"""


def test_threads_that_publish_import_nothing(tmp_path):
    """The libraries are imported when a publisher is built. A fork during an import would leave the module locked in the child."""
    closed_port = "http://127.0.0.1:1"
    variables = {"CKPT_OBSERVE_METRICS_PUSHGATEWAY": closed_port, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": closed_port}
    command = [sys.executable, "-c", BUILD_AND_PUBLISH, str(tmp_path)]
    process = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["ExporterRetryError", "ExporterRetryError"]
