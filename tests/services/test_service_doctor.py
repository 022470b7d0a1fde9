"""The doctor on real servers: what it says of a loopback stand-in, it says of these, too."""

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
    """The command as a user runs it: exit code, and findings by subject."""

    def run(**variables):
        own = {"CKPT_OBSERVE_DIR": state, "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages", **variables}
        environ = {**os.environ, **{name: str(value) for name, value in own.items()}}
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
    """A Collector takes the empty request, and gets no span by it; the same port spoken to in the other protocol is explained."""
    right = collector.variables(protocol)
    other = "http/protobuf" if protocol == "grpc" else "grpc"
    with collector.running():
        code, found = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **right)
        assert (code, found["server otlp"]["state"]) == (0, "ok"), found
        code, found = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **{**right, "OTEL_EXPORTER_OTLP_PROTOCOL": other})
        assert (code, found["server otlp"]["state"]) == (3, "problem")
        assert f"set OTEL_EXPORTER_OTLP_PROTOCOL={protocol}" in found["server otlp"]["detail"]
    assert not collector.file.exists() or collector.file.read_text() == ""
    code, found = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **right)
    assert "nothing listens on this port" in found["server otlp"]["detail"]


def test_collector_with_https(doctor, collector):
    """TLS on our side only."""
    with collector.running():
        _, found = doctor(CKPT_OBSERVE_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"https://127.0.0.1:{collector.http}")
    assert "the URL must start with http://" in found["server otlp"]["detail"]


def test_jaeger(doctor, jaeger):
    """Jaeger, at both of its ports."""
    for protocol in ("grpc", "http/protobuf"):
        code, found = doctor(CKPT_OBSERVE_EXPORTERS="otlp", **jaeger.variables(protocol))
        assert (code, found["server otlp"]["state"]) == (0, "ok"), found


def test_pushgateway_and_prometheus(doctor, pushgateway, prometheus):
    """A Pushgateway is known as one; a Prometheus, which also says that it is ready, takes metrics by OTLP, and its port is a stranger's."""
    code, found = doctor(
        CKPT_OBSERVE_EXPORTERS="prometheus",
        CKPT_OBSERVE_METRICS_PUSHGATEWAY=pushgateway.url,
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=prometheus.otlp,
    )
    assert (code, found["metrics pushgateway"]["state"], found["server otlp metrics"]["state"]) == (0, "ok", "ok"), found
    code, found = doctor(CKPT_OBSERVE_EXPORTERS="prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=prometheus.port)
    assert (code, found[f"metrics port {prometheus.port}"]["state"]) == (3, "problem")
    assert "OTEL_EXPORTER_PROMETHEUS_PORT" in found[f"metrics port {prometheus.port}"]["detail"]


def test_no_server(doctor):
    """Where there is none, that is all that is wrong."""
    code, found = doctor(CKPT_OBSERVE_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{processes.free_port()}")
    assert (code, [subject for subject, each in found.items() if each["state"] == "problem"]) == (3, ["server otlp"])
