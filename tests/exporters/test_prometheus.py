"""The endpoint for scrapes: formats, access, errors and settings."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess

import pytest

from ckpt_observe import config
from ckpt_observe.errors import ConfigError
from ckpt_observe.exporters.prometheus import ScrapeEndpoint, build_publishers
from ckpt_observe.exporters.prometheus_text import OPENMETRICS, TEXT
from ckpt_observe.metricstore.snapshot import gather as gather_all
from ckpt_observe.prometheus_settings import Prometheus

TOKEN = "correct horse"


@pytest.fixture
def serve(tmp_path):
    served = []

    def serve(gather=lambda: gather_all(tmp_path, "1"), **settings):
        endpoint = ScrapeEndpoint(Prometheus(port=0, **settings))
        served.append(endpoint)
        endpoint.publish(gather)
        return endpoint.address

    yield serve
    for endpoint in served:
        endpoint.close()


def get(address, path="/metrics", *, tls=None, **headers):
    kind = http.client.HTTPSConnection(*address, context=tls, timeout=60) if tls else http.client.HTTPConnection(*address, timeout=60)
    kind.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = kind.getresponse()
    body = answer.read()
    kind.close()
    return answer.status, answer.getheader("Content-Type"), body


def test_metrics_in_both_formats(serve):
    """The default is the text format; clients that ask for OpenMetrics get it."""
    address = serve()
    status, content_type, body = get(address)
    assert (status, content_type) == (200, TEXT)
    assert b'ckpt_observe_build_info{version="1"} 1.0' in body
    assert get(address, Accept=OPENMETRICS)[:2] == (200, OPENMETRICS)


def test_other_paths_are_not_found(serve):
    """Only /metrics is served."""
    address = serve()
    assert get(address, "/")[0] == get(address, "/metrics/x")[0] == 404
    assert get(address, "/metrics?name=x")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:9464", 200), ("evil.example", 421), ("127.0.0.1.evil.example:9464", 421), ("", 421)],
)
def test_host_header_must_be_local(serve, host, status):
    """A web page cannot read the metrics through a host name that points to this address."""
    assert get(serve(), Host=host)[0] == status


def test_token_is_required(serve):
    """A missing or wrong token is rejected; with the right one, any host name is accepted."""
    address = serve(token=TOKEN)
    assert get(address)[0] == get(address, Authorization="Bearer wrong")[0] == get(address, Authorization=TOKEN)[0] == 401
    assert get(address, Authorization="Bearer ü")[0] == 401
    assert get(address, Authorization=f"Bearer {TOKEN}", Host="prod.example")[0] == 200


def test_token_is_not_shown():
    """The repr of the settings does not contain the token."""
    environ = {"CKPT_OBSERVE_EXPORTERS": "prometheus", "CKPT_OBSERVE_METRICS_TOKEN": TOKEN}
    settings = config.read(environ)
    assert settings.prometheus.token == TOKEN
    assert TOKEN not in repr(settings)


def test_tls(serve, tmp_path):
    """With a certificate the endpoint uses HTTPS; clients that do not are rejected and block nobody."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    pem = str(tmp_path / "both.pem")
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {pem} -out {pem}.crt"
    subprocess.run(command.split(), check=True, capture_output=True)
    with open(pem, "a") as file, open(f"{pem}.crt") as certificate:
        file.write(certificate.read())
    address = serve(tls=pem)
    silent = socket.create_connection(address)
    with pytest.raises((http.client.HTTPException, OSError)):
        get(address)
    assert get(address, tls=ssl.create_default_context(cafile=f"{pem}.crt"))[0] == 200
    silent.close()


def test_unreadable_metrics_fail_the_scrape(serve):
    """The scrape fails, so that `up` is 0, and the answer contains no details."""

    def broken():
        raise OSError("/secret/path")

    status, _, body = get(serve(broken))
    assert status == 503
    assert b"secret" not in body


def test_port_is_exclusive_and_free_after_close(tmp_path):
    """A second endpoint cannot use the port, but can as soon as the first is closed."""
    first = ScrapeEndpoint(Prometheus(port=0))
    first.publish(lambda: gather_all(tmp_path, "1"))
    address = first.address
    second = ScrapeEndpoint(Prometheus(port=address[1]))
    with pytest.raises(OSError):
        second.publish(lambda: gather_all(tmp_path, "1"))
    assert get(address)[0] == 200
    first.close()
    second.publish(lambda: gather_all(tmp_path, "1"))
    assert get(address)[0] == 200
    second.close()


ON = {"CKPT_OBSERVE_EXPORTERS": "prometheus"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "prod.example"])
def test_open_bind_needs_token_or_tls(host, tmp_path):
    """An address that other machines reach needs a token or TLS, but only if the exporter is enabled."""
    environ = {**ON, "OTEL_EXPORTER_PROMETHEUS_HOST": host}
    with pytest.raises(ConfigError, match="CKPT_OBSERVE_METRICS_TOKEN"):
        config.read(environ)
    assert config.read({**environ, "CKPT_OBSERVE_METRICS_TOKEN": "x"}).prometheus.host == host
    (tmp_path / "pem").touch()
    assert config.read({**environ, "CKPT_OBSERVE_METRICS_TLS": str(tmp_path / "pem")}).prometheus.host == host
    assert config.read({**environ, "CKPT_OBSERVE_EXPORTERS": "local"}).exporters == ("local",)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "http"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "70000"),
        ("CKPT_OBSERVE_METRICS_TEXTFILE", "/tmp/metrics.txt"),
        ("CKPT_OBSERVE_METRICS_PUSHGATEWAY", "gateway:9091"),
        ("CKPT_OBSERVE_METRICS_PUSHGATEWAY", "user:s3cret@gateway:9091"),
    ],
)
def test_invalid_setting(variable, value):
    """The message names the variable and contains no password."""
    with pytest.raises(ConfigError, match=variable) as caught:
        config.read({**ON, variable: value})
    assert "s3cret" not in str(caught.value)


def test_defaults_and_choice_of_publisher():
    """The default is port 9464 on loopback; a text file or Pushgateway replaces the endpoint."""
    settings = config.read(ON).prometheus
    assert (settings.host, settings.port) == ("127.0.0.1", 9464)
    assert [publisher.name for publisher in build_publishers(settings, "s")] == ["endpoint-9464"]
    batch = config.read(
        {**ON, "CKPT_OBSERVE_METRICS_TEXTFILE": "/x/a.prom", "CKPT_OBSERVE_METRICS_PUSHGATEWAY": "http://gateway"}
    ).prometheus
    assert [publisher.name for publisher in build_publishers(batch, "s")] == ["textfile", "pushgateway"]


def test_certificate_that_does_not_exist_yet(tmp_path):
    """The error names the setting. The file may come later, so the settings are valid, and the endpoint is tried again."""
    tls = config.read({**ON, "CKPT_OBSERVE_METRICS_TLS": str(tmp_path / "pem")}).prometheus.tls
    with pytest.raises(OSError, match="CKPT_OBSERVE_METRICS_TLS"):
        ScrapeEndpoint(Prometheus(port=0, tls=tls)).publish(lambda: None)


def test_port_of_another_program():
    """If the port is in use, the error says what to do. Processes of one state directory share a lock, so it is another program."""
    with socket.create_server(("127.0.0.1", 0)) as other_program:
        port = other_program.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is used by another program; set OTEL_EXPORTER_PROMETHEUS_PORT"):
            ScrapeEndpoint(Prometheus(port=port)).publish(lambda: None)
