"""The services of docker-compose.yml as real programs, without containers, with the demo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import backend_spans
import compose_services
import pytest
from compose_services import PROJECT, STACK
from processes import eventually, free_port, program

from ckpt_observe.alerts.rule_files import ROUTING, files
from ckpt_observe.alerts.site import Site
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.services

DATASOURCES = PROJECT / "dashboards" / "provisioning" / "datasources" / "ckpt_observe.yml"


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """Run everything that `docker compose up` starts, except Grafana."""
    directory = tmp_path_factory.mktemp("stack")
    jaeger, alertmanager = compose_services.Jaeger(directory), compose_services.Alertmanager(directory)
    collector = compose_services.OtlpService("collector", "otelcol", directory, JAEGER_ENDPOINT=f"127.0.0.1:{jaeger.grpc}")
    targets = {"collector:8888": collector.metrics, "jaeger:8888": jaeger.metrics, "alertmanager:9093": alertmanager.port}
    prometheus = compose_services.Prometheus(directory, targets)
    collector.environ["PROMETHEUS_ENDPOINT"] = prometheus.otlp
    with ExitStack() as running:
        for service in (jaeger, prometheus, alertmanager, collector):
            running.enter_context(service.running())
        yield SimpleNamespace(jaeger=jaeger, prometheus=prometheus, alertmanager=alertmanager, collector=collector)


@pytest.fixture(scope="module")
def demo(stack, tmp_path_factory):
    """Run the demo twice, as the service `demo` does, so that counters increase. Returns its state directory."""
    state = tmp_path_factory.mktemp("demo")
    [command] = re.findall(r"ckpt-observe (demo [^;]+);", compose_services.read(STACK)["services"]["demo"]["command"][-1])
    endpoint = stack.collector.variables("http/protobuf")["OTEL_EXPORTER_OTLP_ENDPOINT"]
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{endpoint}/v1/metrics"}
    variables |= {"CKPT_OBSERVE_DIR": str(state), "OTEL_EXPORTER_PROMETHEUS_PORT": str(free_port())}
    assert set(compose_services.read(STACK)["services"]["demo"]["environment"]) <= set(variables)
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "ckpt_observe", *command.split()], env={**os.environ, **variables}, check=True, stdout=subprocess.DEVNULL
        )
    return state


def test_rules_and_routes_are_valid(stack):
    """The mounted rules and routes pass the checks of promtool and amtool, with the paths of the container."""
    for tool, arguments, service in (
        ("promtool", ("check", "config"), stack.prometheus),
        ("amtool", ("check-config",), stack.alertmanager),
    ):
        [file] = [each.partition("=")[2] for each in service.command() if each.startswith("--config.file=")]
        result = subprocess.run([program(tool), *arguments, file], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def test_services_are_connected(stack):
    """Prometheus scrapes every service, has the rules, and knows the Alertmanager."""
    jobs = {"prometheus", "collector", "jaeger", "alertmanager"}
    eventually(lambda: {job for (job,) in stack.prometheus.query("sum by (job) (up) == 1")} == jobs, f"{jobs} are scraped", seconds=60)
    assert stack.prometheus.get("rules")["groups"]
    urls = [each["url"] for each in stack.prometheus.get("alertmanagers")["activeAlertmanagers"]]
    assert urls == [f"http://127.0.0.1:{stack.alertmanager.port}/api/v2/alerts"]


@pytest.mark.parametrize("webhook", [False, True])
def test_receivers_log_no_errors(tmp_path, webhook):
    """Alertmanager sends an alert to each receiver and logs no error. Control: with a webhook that nobody serves, it does."""
    alertmanager = compose_services.Alertmanager(tmp_path, ["--log.level=debug"])
    if webhook:
        [file] = [Path(each.partition("=")[2]) for each in alertmanager.command() if each.startswith("--config.file=")]
        file.unlink()  # a link to the committed file
        file.write_text(files(Site(), f"http://127.0.0.1:{free_port()}")[ROUTING])
    alerts = {"CheckpointWatchdog": "none", "CheckpointFailing": "critical", "CheckpointSlow": "warning"}
    add = [program("amtool"), f"--alertmanager.url=http://127.0.0.1:{alertmanager.port}", "alert", "add", "--start=2020-01-01T00:00:00Z"]
    with alertmanager.running() as process:
        for name, severity in alerts.items():  # alerts of long ago are sent at once, without waiting for others of their group
            subprocess.run([*add, name, f"severity={severity}"], check=True)
        for name in alerts:
            eventually(lambda name=name: re.search(rf"msg=flushing .*{name}", process.output()), f"{name} is sent")
        problem = r"level=(?:WARN|ERROR) .*Notify"
        if webhook:
            eventually(lambda: re.search(problem, process.output()), "the notifications fail")
        else:
            assert not re.search(problem, process.output())
            assert "level=ERROR" not in process.output()


def test_traces_of_the_demo_are_in_jaeger(stack, demo):
    """Through the OTel Collector, Jaeger gets the spans that the local store has, including the killed save."""
    stored = backend_spans.from_local_store(demo)
    spans = eventually(
        lambda: len(each := backend_spans.from_jaeger(stack.jaeger.traces("ckpt-observe-demo"))) >= len(stored) and each,
        "all spans are in Jaeger",
    )
    assert spans == [backend_spans.as_stored_by_jaeger(span) for span in stored]
    outcomes = Counter(span.attributes[names.OUTCOME] for span in spans if names.OPERATION in span.attributes)
    assert outcomes["interrupted"] == outcomes["error"] == 2


def test_metrics_of_the_demo_are_in_prometheus(stack, demo):
    """Through the OTel Collector, Prometheus gets the numbers of the local store."""
    operations = [span for span in backend_spans.from_local_store(demo) if names.OPERATION in span.attributes]
    expected = Counter((span.attributes[names.OPERATION], span.attributes[names.OUTCOME]) for span in operations)
    counted = 'sum by (operation, outcome) (checkpoint_operations_total{job="ckpt-observe-demo"}) > 0'
    eventually(lambda: stack.prometheus.query(counted) == expected, f"Prometheus has {expected}")


def test_exemplar_leads_to_its_trace(stack, demo):
    """An exemplar in Prometheus has the label that the data source uses for links, and Jaeger has its trace."""
    [label] = re.findall(r"exemplarTraceIdDestinations:\n\s+- name: (\w+)", DATASOURCES.read_text())
    series = eventually(lambda: stack.prometheus.exemplars("checkpoint_operation_duration_seconds_bucket"), "exemplars are in Prometheus")
    linked = {exemplar["labels"][label] for each in series for exemplar in each["exemplars"]}
    assert linked
    assert linked <= {trace["traceID"] for trace in stack.jaeger.traces("ckpt-observe-demo")}


def test_links_of_an_alert(stack, demo):
    """The alert about the killed save links to the addresses of docker-compose.yml. Jaeger answers the search with the trace of that save."""

    def links():
        alerts = stack.prometheus.get("alerts")["alerts"]
        return next((each["annotations"] for each in alerts if each["labels"]["alertname"] == "CheckpointInterrupted"), None)

    annotations = eventually(links, "the alert fires")
    ports = {
        name: service["ports"][0]["published"] for name, service in compose_services.read(STACK)["services"].items() if "ports" in service
    }
    dashboard, search = urlsplit(annotations["dashboard_url"]), urlsplit(annotations["traces_url"])
    assert dashboard.netloc == f"127.0.0.1:{ports['grafana']}"
    assert parse_qs(dashboard.query)["var-job"] == ["ckpt-observe-demo"]
    assert search.netloc == f"127.0.0.1:{ports['jaeger']}"
    interrupted = {span.trace_id for span in backend_spans.from_local_store(demo) if span.attributes.get(names.OUTCOME) == "interrupted"}
    assert {trace["traceID"] for trace in stack.jaeger.get("traces", search.query)} == interrupted


def test_trace_leads_to_its_metrics(stack, demo):
    """Each query that Grafana offers for a span returns data, with the tags that it inserts."""
    text = DATASOURCES.read_text()
    [(key, value)] = re.findall(r"- \{key: (.+), value: (.+)\}", text)
    service = backend_spans.from_local_store(demo)[0].resource[key]
    queries = [query.replace("$$__tags", f'{value}="{service}"') for query in re.findall(r"(?m)^ +query: (.+)$", text)]
    assert len(queries) == 4
    for query in queries:
        eventually(lambda query=query: stack.prometheus.query(query), f"an answer to {query}")


def test_nothing_is_lost_while_jaeger_is_down(tmp_path, run_agent, state):
    """While Jaeger is down, the OTel Collector refuses spans, so they stay with the program; the next process delivers all of them."""
    jaeger = compose_services.Jaeger(tmp_path)
    collector = compose_services.OtlpService("collector", "otelcol", tmp_path, JAEGER_ENDPOINT=f"127.0.0.1:{jaeger.grpc}")
    with collector.running():
        run_agent("work", "otlp,local", patience=1, OTEL_SERVICE_NAME="away", **collector.variables("grpc"))
        with jaeger.running():
            run_agent("resume", "otlp,local", OTEL_SERVICE_NAME="away", **collector.variables("grpc"))
            stored = backend_spans.from_local_store(state)
            assert backend_spans.from_jaeger(jaeger.traces("away")) == [backend_spans.as_stored_by_jaeger(span) for span in stored]
