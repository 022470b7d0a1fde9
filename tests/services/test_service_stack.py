"""docker-compose.yml: its services for real but for the containers, with the demo in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import deployed
import pytest
import received
from deployed import PROJECT, STACK
from processes import eventually, program

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.services

DATASOURCES = PROJECT / "dashboards" / "provisioning" / "datasources" / "ckpt_observe.yml"


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """Everything that `docker compose up` starts and that can be had here: all but Grafana."""
    directory = tmp_path_factory.mktemp("stack")
    jaeger, alertmanager = deployed.Jaeger(directory), deployed.Alertmanager(directory)
    collector = deployed.OtlpService("collector", "otelcol", directory, JAEGER_ENDPOINT=f"127.0.0.1:{jaeger.grpc}")
    targets = {"collector:8888": collector.metrics, "jaeger:8888": jaeger.metrics, "alertmanager:9093": alertmanager.port}
    prometheus = deployed.Prometheus(directory, targets)
    collector.environ["PROMETHEUS_ENDPOINT"] = prometheus.otlp
    with ExitStack() as running:
        for service in (jaeger, prometheus, alertmanager, collector):
            running.enter_context(service.running())
        yield SimpleNamespace(jaeger=jaeger, prometheus=prometheus, alertmanager=alertmanager, collector=collector)


@pytest.fixture(scope="module")
def demo(stack, tmp_path_factory):
    """The demo, as the service `demo` runs it, twice: the first time there is nothing yet that could increase. Gives its state directory."""
    state = tmp_path_factory.mktemp("demo")
    [command] = re.findall(r"ckpt-observe (demo [^;]+);", deployed.read(STACK)["services"]["demo"]["command"][-1])
    endpoint = stack.collector.variables("http/protobuf")["OTEL_EXPORTER_OTLP_ENDPOINT"]
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{endpoint}/v1/metrics"}
    variables |= {"CKPT_OBSERVE_DIR": str(state), "OTEL_EXPORTER_PROMETHEUS_PORT": str(deployed.processes.free_port())}
    assert set(deployed.read(STACK)["services"]["demo"]["environment"]) <= set(variables)
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "ckpt_observe", *command.split()], env={**os.environ, **variables}, check=True, stdout=subprocess.DEVNULL
        )
    return state


def test_rules_and_routes_are_good(stack):
    """The rules and the routes that are mounted pass the checks of their own tools, with the paths of the container."""
    for tool, arguments, service in (
        ("promtool", ("check", "config"), stack.prometheus),
        ("amtool", ("check-config",), stack.alertmanager),
    ):
        [file] = [each.partition("=")[2] for each in service.command() if each.startswith("--config.file=")]
        done = subprocess.run([program(tool), *arguments, file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_stack_knows_itself(stack):
    """Prometheus scrapes every service, has the rules, and knows the Alertmanager."""
    jobs = {"prometheus", "collector", "jaeger", "alertmanager"}
    eventually(lambda: {job for (job,) in stack.prometheus.query("sum by (job) (up) == 1")} == jobs, f"{jobs} are scraped", seconds=60)
    assert stack.prometheus.get("rules")["groups"]
    urls = [each["url"] for each in stack.prometheus.get("alertmanagers")["activeAlertmanagers"]]
    assert urls == [f"http://127.0.0.1:{stack.alertmanager.port}/api/v2/alerts"]


def test_traces_of_the_demo_are_in_jaeger(stack, demo):
    """What Jaeger has of the demo, through the Collector, is what the local store has, the killed save included."""
    kept = received.of_local_store(demo)
    found = eventually(
        lambda: len(spans := received.of_jaeger(stack.jaeger.traces("ckpt-observe-demo"))) >= len(kept) and spans, "all spans are in Jaeger"
    )
    assert found == [received.as_jaeger_keeps(span) for span in kept]
    outcomes = Counter(span.attributes[names.OUTCOME] for span in found if names.OPERATION in span.attributes)
    assert outcomes["interrupted"] == outcomes["error"] == 2


def test_metrics_of_the_demo_are_in_prometheus(stack, demo):
    """What Prometheus has of the demo, through the Collector, are the numbers of the local store."""
    operations = [span for span in received.of_local_store(demo) if names.OPERATION in span.attributes]
    wanted = Counter((span.attributes[names.OPERATION], span.attributes[names.OUTCOME]) for span in operations)
    counted = 'sum by (operation, outcome) (checkpoint_operations_total{job="ckpt-observe-demo"}) > 0'
    eventually(lambda: stack.prometheus.query(counted) == wanted, f"Prometheus has {wanted}")


def test_exemplar_leads_to_its_trace(stack, demo):
    """N11: an exemplar that came through Collector and Prometheus has the label that the datasource looks for, and Jaeger has its trace."""
    [label] = re.findall(r"exemplarTraceIdDestinations:\n\s+- name: (\w+)", DATASOURCES.read_text())
    series = eventually(lambda: stack.prometheus.exemplars("checkpoint_operation_duration_seconds_bucket"), "exemplars are in Prometheus")
    linked = {exemplar["labels"][label] for each in series for exemplar in each["exemplars"]}
    assert linked
    assert linked <= {trace["traceID"] for trace in stack.jaeger.traces("ckpt-observe-demo")}


def test_trace_leads_to_its_metrics(stack, demo):
    """N11: each query that Grafana offers beside a span has an answer, with the tags that it puts in."""
    text = DATASOURCES.read_text()
    [(key, value)] = re.findall(r"- \{key: (.+), value: (.+)\}", text)
    service = received.of_local_store(demo)[0].resource[key]
    queries = [query.replace("$$__tags", f'{value}="{service}"') for query in re.findall(r"(?m)^ +query: (.+)$", text)]
    assert len(queries) == 4
    for query in queries:
        eventually(lambda query=query: stack.prometheus.query(query), f"an answer to {query}")


def test_nothing_is_lost_while_jaeger_is_away(tmp_path, run_agent, state):
    """F: the Collector refuses what Jaeger cannot take, so it stays with the program, and the next one brings it: all of it."""
    jaeger = deployed.Jaeger(tmp_path)
    collector = deployed.OtlpService("collector", "otelcol", tmp_path, JAEGER_ENDPOINT=f"127.0.0.1:{jaeger.grpc}")
    with collector.running():
        run_agent("work", "otlp,local", patience=1, OTEL_SERVICE_NAME="away", **collector.variables("grpc"))
        with jaeger.running():
            run_agent("resume", "otlp,local", OTEL_SERVICE_NAME="away", **collector.variables("grpc"))
            kept = received.of_local_store(state)
            assert received.of_jaeger(jaeger.traces("away")) == [received.as_jaeger_keeps(span) for span in kept]
