"""The real command `opentelemetry-instrument` with an unchanged program and the TracerProvider of the command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "exporters"))

import collectors

from ckpt_observe.core import Checkpointer
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

PROGRAM = """
import sys
from opentelemetry import trace
from ckpt_observe.core import Checkpointer

with trace.get_tracer("host").start_as_current_span("the program's own"):
    Checkpointer(sys.argv[1]).save("run", {"a": 1})
"""

DOCUMENTED = Path(__file__).parents[1] / "docs" / "backends.md"


@pytest.fixture
def run(tmp_path):
    """`run()` runs the program under the command. It returns the spans that a collector received, and standard error."""
    command = shutil.which("opentelemetry-instrument", path=Path(sys.executable).parent)
    if command is None:
        pytest.skip("opentelemetry-instrument is not installed: pip install 'ckpt-observe[dev]'")
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(**variables):
        with collectors.HttpCollector() as collector:
            settings = {
                "CKPT_OBSERVE_DIR": str(tmp_path / "state"),
                "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
                "COLLECTOR": collector.url,
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_METRICS_EXPORTER": "none",
                "OTEL_LOGS_EXPORTER": "none",
                **variables,
            }
            environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | settings
            done = subprocess.run(
                [command, sys.executable, "program.py", "ckpt"],
                env=environ,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            bodies = [collectors.spans_of(body) for _, _, body in collector.requests]
            return [span for spans in bodies for span in spans], done.stderr

    return run


def test_spans_go_through_the_provider(run):
    """Our spans are below the program's span, each once, with the resource of the provider, without any import."""
    spans, stderr = run(OTEL_SERVICE_NAME="mine", OTEL_RESOURCE_ATTRIBUTES="team=storage")
    by_name = {span.name: span for span in spans}
    assert len(by_name) == len(spans), "each once"
    host, save = by_name["the program's own"], by_name["checkpoint.save"]
    assert (save.trace_id, save.parent_span_id) == (host.trace_id, host.span_id)
    assert by_name["checkpoint.write"].parent_span_id == save.span_id
    assert save.attributes[names.OUTCOME] == "ok"
    assert save.resource == host.resource
    assert (save.resource["service.name"], save.resource["team"]) == ("mine", "storage")
    assert "telemetry.auto.version" in save.resource, "the resource of the provider that the command created"
    assert stderr == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "requests, ckpt_observe"}, ["the program's own"]),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, ["the program's own"]),
        ({"CKPT_OBSERVE_ENABLED": "false"}, ["the program's own"]),
        ({"OTEL_SDK_DISABLED": "true"}, []),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, []),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, []),
    ],
)
def test_switches(run, variables, expected):
    """OpenTelemetry's switches have the same effect as on its own instrumentations."""
    spans, _ = run(**variables)
    assert [span.name for span in spans] == expected


def test_invalid_setting(run):
    """An invalid setting is logged. The program, other instrumentations and the provider work."""
    spans, stderr = run(CKPT_OBSERVE_EXPORTERS="pigeon")
    assert [span.name for span in spans] == ["the program's own"]
    assert "'pigeon' is not valid" in stderr


def test_declarative_configuration(run, tmp_path):
    """A provider from OTEL_CONFIG_FILE gets our spans with the resource of the file, which is the one in the documentation."""
    (tmp_path / "otel.yaml").write_text(re.search(r"```yaml\n(.*?)```", DOCUMENTED.read_text(encoding="utf-8"), re.DOTALL)[1])
    spans, _ = run(OTEL_CONFIG_FILE=str(tmp_path / "otel.yaml"))
    assert {"the program's own", "checkpoint.save", "checkpoint.write"} <= {span.name for span in spans}
    assert {span.resource["service.name"] for span in spans} == {"trainer"}


def test_instrumentor_api(monkeypatch, state):
    """`instrument()` patches, and `uninstrument()` restores the original functions."""
    module = pytest.importorskip("ckpt_observe.otel_instrumentor", exc_type=ImportError)
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(state))
    original = Checkpointer.__dict__["save"]
    instrumentor = module.CheckpointInstrumentor()
    instrumentor.instrument()
    assert isinstance(Checkpointer.__dict__["save"], PatchedCallable)
    instrumentor.uninstrument()
    assert Checkpointer.__dict__["save"] is original
