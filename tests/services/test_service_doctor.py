"""`ckpt-observe doctor` with real servers: the findings are the same as with the test servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import processes
import pytest

pytestmark = pytest.mark.services


@pytest.fixture
def doctor(state, tmp_path):
    """Run the command as a user does; returns the exit code and the findings by subject."""

    def run(**variables):
        variables = {"CKPT_OBSERVE_DIR": state, "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages", **variables}
        environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        done = subprocess.run(
            [sys.executable, "-m", "ckpt_observe", "doctor", "--json"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, {each["subject"]: each for each in map(json.loads, done.stdout.splitlines())}

    return run


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_collector(doctor, collector, protocol):
    """An OTel Collector accepts the empty request and receives no span; with the wrong protocol for the port, the finding names the right one."""
    right = collector.variables(protocol)
    other = "http/protobuf" if protocol == "grpc" else "grpc"
    with collector.running():
        code, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **right)
        assert (code, findings["server otlp"]["state"]) == (0, "ok"), findings
        code, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **{**right, "OTEL_EXPORTER_OTLP_PROTOCOL": other})
        assert (code, findings["server otlp"]["state"]) == (3, "problem")
        assert f"set OTEL_EXPORTER_OTLP_PROTOCOL={protocol}" in findings["server otlp"]["detail"]
    assert not collector.file.exists() or collector.file.read_text() == ""
    code, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **right)
    assert "nothing listens on this port" in findings["server otlp"]["detail"]


def test_collector_with_https(doctor, collector):
    """With an https URL for a server without TLS, the finding says so."""
    with collector.running():
        _, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"https://127.0.0.1:{collector.http}")
    assert "the URL must start with http://" in findings["server otlp"]["detail"]


def test_jaeger(doctor, jaeger):
    """Jaeger accepts the request on both of its ports."""
    for protocol in ("grpc", "http/protobuf"):
        code, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **jaeger.variables(protocol))
        assert (code, findings["server otlp"]["state"]) == (0, "ok"), findings


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_phoenix(doctor, phoenix, protocol):
    """Phoenix accepts the request on both of its ports."""
    code, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **phoenix.variables("doctor", protocol))
    assert (code, findings["server otlp"]["state"]) == (0, "ok"), findings


@pytest.mark.parametrize(
    ("headers", "code", "states", "hint"),
    [
        ("x-mlflow-experiment-id=0", 0, {"server otlp": "ok", "mlflow experiment": "ok"}, "0 exists"),
        ("x-mlflow-experiment-id=999", 3, {"server otlp": "ok", "mlflow experiment": "problem"}, "No Experiment with id=999 exists"),
        ("x-mlflow-experiment-id=demo", 3, {"server otlp": "ok", "mlflow experiment": "problem"}, "must be a valid integer"),
        ("", 3, {"server otlp": "problem"}, "add x-mlflow-experiment-id=ID to OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_mlflow(doctor, mlflow, headers, code, states, hint):
    """MLflow is usable with an experiment that exists. Without one, or with another one, the finding says what to do."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": mlflow.url, "OTEL_EXPORTER_OTLP_HEADERS": headers}
    result, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **variables)
    server_findings = {subject: each for subject, each in findings.items() if subject.startswith(("server", "mlflow"))}
    assert (result, {subject: each["state"] for subject, each in server_findings.items()}) == (code, states), findings
    assert any(hint in each["detail"] for each in server_findings.values())


def test_pushgateway_and_prometheus(doctor, pushgateway, prometheus):
    """A Pushgateway and the OTLP receiver of Prometheus are fine; the port of Prometheus as our metrics port is a problem."""
    code, findings = doctor(
        CKPT_OBSERVE_EXPORTERS="prometheus",
        CKPT_OBSERVE_METRICS_PUSHGATEWAY=pushgateway.url,
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=prometheus.otlp,
    )
    assert (code, findings["metrics pushgateway"]["state"], findings["server otlp metrics"]["state"]) == (0, "ok", "ok"), findings
    code, findings = doctor(CKPT_OBSERVE_EXPORTERS="prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=prometheus.port)
    assert (code, findings[f"metrics port {prometheus.port}"]["state"]) == (3, "problem")
    assert "OTEL_EXPORTER_PROMETHEUS_PORT" in findings[f"metrics port {prometheus.port}"]["detail"]


def test_no_server(doctor):
    """Without a server, the server is the only problem."""
    code, findings = doctor(CKPT_OBSERVE_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{processes.free_port()}")
    assert (code, [subject for subject, each in findings.items() if each["state"] == "problem"]) == (3, ["server otlp"])
