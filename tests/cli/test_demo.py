"""`ckpt-observe demo`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest
from collectors import HttpCollector
from laminar_server import LaminarServer

from ckpt_observe import config
from ckpt_observe.cli import trace_links


def test_demo(command):
    """The demo prints a tree with an interrupted save and its phase, a failure, and a restore that links back to a save."""
    done = command("demo")
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        "interrupted in write",
        "serialization.unsupported_type",
        "checkpoint.restore",
        "from a save of this trace",
        "1 interrupted",
        "steps to repeat: 1",
    ):
        assert text in done.stdout
    trace = re.search(r"ckpt-observe traces ([0-9a-f]{12})", done.stdout)[1]
    assert "interrupted in write" in command("traces", trace).stdout
    statistics = [json.loads(line)["statistics"] for line in command("stats", "--json").stdout.splitlines()]
    assert {row["task_name"] for row in statistics} == {"demo-agent"}, "the killed process names its task, too"
    assert sum(row["outcomes"].get("interrupted", 0) for row in statistics) == 1


@pytest.mark.parametrize(
    "switches",
    [
        {
            "CKPT_OBSERVE_ENABLED": "false",
            "OTEL_SDK_DISABLED": "true",
            "OTEL_TRACES_SAMPLER": "always_off",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*",
            "CKPT_OBSERVE_LIBRARIES": "none",
            "CKPT_OBSERVE_DELIVERY": "daemon",
        },
        {"TRACEPARENT": f"00-{'ab' * 16}-{'cd' * 8}-00"},
    ],
    ids=["switches", "unsampled parent"],
)
def test_demo_ignores_settings_that_turn_recording_off(command, switches):
    """The demo shows its whole trace even if recording or tracing is turned off, in any of the ways, each of which would suffice."""
    done = command("demo", **switches)
    assert (done.returncode, done.stderr) == (0, "")
    assert "9 checkpoint operations: 7 ok, 1 error, 1 interrupted." in done.stdout


def test_demo_with_another_exporter(command):
    """The other exporter gets everything as well, including the save of the killed process."""
    done = command("demo", "--exporters", "console")
    assert done.returncode == 0
    for text in ("task demo-agent", "serialization.unsupported_type", "interrupted in write"):
        assert text in done.stdout
        assert text in done.stderr


@pytest.fixture
def closed_port():
    """A port on which nothing listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


SUMMARY = "9 checkpoint operations: 7 ok, 1 error, 1 interrupted."


@pytest.mark.faults
@pytest.mark.parametrize(
    ("exporter", "server"),
    [
        ("otlp", "refuses connections"),
        ("otlp", "never answers"),
        ("otlp", "is not configured"),
        ("laminar", "rejects the key"),
        ("laminar", "is not configured"),
    ],
)
def test_demo_prints_its_tree_whatever_the_server_does(command, closed_port, exporter, server):
    """The tree is printed, the exit code is 0, and a message names the exporter that lacks something."""
    with HttpCollector() as collector:
        collector.otherwise = "stall" if server == "never answers" else 401
        url = f"http://127.0.0.1:{closed_port}" if server == "refuses connections" else collector.url
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "LMNR_BASE_URL": url, "LMNR_PROJECT_API_KEY": "key"}
        if server == "is not configured":
            variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"}
        done = command("demo", "--exporters", exporter, **variables)
        collector.released.set()
    assert done.returncode == 0, done.stderr
    assert SUMMARY in done.stdout
    assert "Open it" not in done.stdout
    expected = f"Exporter {exporter} is not used: " if server == "is not configured" else f"ckpt-observe: {exporter} has not received"
    assert done.stderr.count(expected) == 1, done.stderr


def test_demo_sends_to_the_backends_that_are_configured(command):
    """With nothing but a Laminar key, Laminar gets the whole trace under the name of its task, and the demo prints its address there."""
    with LaminarServer() as server:
        done = command("demo", LMNR_PROJECT_API_KEY=server.key, LMNR_BASE_URL=server.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert (list(server.trace_names.values()), server.complaints()) == (["task demo-agent"], [])
        [trace_id] = {row.trace_id for row in server.rows}
    uuid = f"{trace_id[:8]}-{trace_id[8:12]}-{trace_id[12:16]}-{trace_id[16:20]}-{trace_id[20:]}"
    assert f"Open it:        http://127.0.0.1:5667/traces/{uuid}\n" in done.stdout
    assert {row.attributes.get("checkpoint.outcome") for row in server.rows} >= {"ok", "error", "interrupted"}


def test_demo_sends_only_to_named_exporters(command):
    """`--exporters` replaces the exporters of the environment."""
    with LaminarServer() as server:
        done = command("demo", "--exporters", "local", LMNR_PROJECT_API_KEY=server.key, LMNR_BASE_URL=server.url)
        assert (done.returncode, server.rows) == (0, [])


@pytest.mark.parametrize("value", ["none", "console"])
def test_demo_needs_no_local_exporter(command, value):
    """The demo reads its trace from the local store, so it adds that exporter."""
    done = command("demo", CKPT_OBSERVE_EXPORTERS=value)
    assert (done.returncode, SUMMARY in done.stdout) == (0, True)


def test_demo_in_a_directory_that_cannot_be_used(command, tmp_path):
    """The demo says so, and uses another directory."""
    (tmp_path / "file").write_text("in the way")
    done = command("demo", "--dir", str(tmp_path / "file" / "state"))
    assert (done.returncode, SUMMARY in done.stdout) == (0, True)
    assert "the demo uses" in done.stderr


FULL_DISK = """
import sys
from ckpt_observe import wiring
from ckpt_observe.cli.main import main
from ckpt_observe.errors import JournalError

def fail(*_):
    raise JournalError("no space left")

wiring.open_journal = fail
sys.exit(main(["demo"]))
"""


def test_demo_that_is_not_recorded(tmp_path):
    """Without a journal, as on a full disk, the demo has no trace to show, and says what to do."""
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", FULL_DISK], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Checkpoints are not observed: no space left" in done.stderr
    assert "ckpt-observe: the demo was not recorded; to test the directories, run: ckpt-observe doctor" in done.stderr


def test_laminar_pages():
    """The page of Laminar's cloud has another host than its API, and that of an own server on this machine another port."""
    uuid = "0af76519-16cd-43dd-8448-eb211c80319c"

    def link(url):
        settings = config.read({"LMNR_PROJECT_API_KEY": "key", "LMNR_BASE_URL": url})
        return dict(trace_links.trace_links(settings, uuid.replace("-", "")))["laminar"]

    assert link("") == f"https://www.laminar.sh/traces/{uuid}"
    assert link("http://localhost:8000") == f"http://localhost:5667/traces/{uuid}"
    assert link("https://user:secret@laminar.example/") == f"https://laminar.example/traces/{uuid}"


@pytest.mark.parametrize(
    ("endpoint", "headers", "link"),
    [
        ("http://localhost:6006", "", "http://localhost:6006/redirects/traces/{trace}"),
        ("https://u:secret@phoenix.example", "x-project-name=a", "https://phoenix.example/redirects/traces/{trace}"),
        (
            "http://localhost:5000",
            "x-mlflow-experiment-id=7",
            "http://localhost:5000/#/experiments/7/traces?selectedEvaluationId=tr-{trace}",
        ),
    ],
)
def test_phoenix_and_mlflow_pages(endpoint, headers, link):
    """Phoenix finds the project of a trace itself. MLflow's page needs the experiment."""
    settings = config.read({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_HEADERS": headers})
    assert list(trace_links.trace_links(settings, "ab" * 16)) == [("otlp", link.format(trace="ab" * 16))]


@pytest.mark.parametrize(
    ("answer", "is_jaeger"),
    [
        ((200, {}, b'{"data": ["trainer"], "total": 1}'), True),
        ((200, {}, b"[]"), False),
        ((200, {}, b'"\xff"'), False),
        ((200, {}, b"<html>"), False),
        ((404, {}, b'{"data": null}'), False),
        ("cut", False),
    ],
    ids=str,
)
def test_jaeger_is_linked_only_if_it_answers(monkeypatch, answer, is_jaeger):
    """Jaeger's page is expected on the host of the OTLP server. Any other server there is not taken for it."""
    with HttpCollector() as page:
        page.pages["/api/services"] = answer
        monkeypatch.setattr(trace_links, "_JAEGER_PORT", page.port)
        settings = config.read({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
        links = list(trace_links.trace_links(settings, "ab" * 16))
    assert links == ([("otlp", f"http://127.0.0.1:{page.port}/trace/{'ab' * 16}")] if is_jaeger else [])
