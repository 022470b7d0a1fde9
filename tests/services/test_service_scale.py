"""deploy/scale with real programs: a front, two gateways, what they sample of a fleet, and remote write."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from itertools import chain

import backend_spans
import compose_services
import fleet
import processes
import pytest
import telemetry
from compose_services import PROJECT, SCALE
from processes import eventually
from prometheus_client.parser import text_string_to_metric_families

from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span

pytestmark = pytest.mark.services

RUNS = 40
BAD = {"error", "interrupted", "cancelled"}
LONG = "10m"
"""Longer than a test, so that decisions are made when the gateway ends."""


class Gateway(compose_services.OtlpService):
    """A gateway of the compose file, with an OTel Collector in place of Jaeger that records what it forwards."""

    def __init__(self, name, directory, *arguments, **variables):
        (directory / f"behind-{name}").mkdir()
        self.behind = telemetry.Collector(directory / f"behind-{name}")
        queue = directory / f"queue-{name}"
        super().__init__(
            name,
            "otelcol",
            directory,
            SCALE,
            arguments,
            TRACES_ENDPOINT=f"127.0.0.1:{self.behind.grpc}",
            QUEUE_DIRECTORY=queue,
            **variables,
        )

    def forwarded(self):
        return backend_spans.from_collector(self.behind.file)

    def count_dropped(self):
        """Return the number of traces that it decided to drop."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30).read().decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if "global_count_traces_sampled" in sample.name and sample.labels.get("decision") == "not_sampled"
        )


def tiers(directory, **variables):
    """Return a front and its two gateways, which are not running yet."""
    gateways = [Gateway(name, directory, **variables) for name in ("gateway-1", "gateway-2")]
    addresses = f"[{', '.join(f'127.0.0.1:{each.grpc}' for each in gateways)}]"
    return compose_services.OtlpService("collector", "otelcol", directory, SCALE, GATEWAYS=addresses), gateways


@contextmanager
def two_tiers(directory, **variables):
    """Run a front and two gateways. When a gateway ends, it decides about all traces."""
    front, gateways = tiers(directory, **variables)
    with ExitStack() as running:
        for server in (*(each.behind for each in gateways), *gateways, front):
            running.enter_context(server.running())
        yield front, gateways


@pytest.fixture
def run_fleet(state, tmp_path):
    """Run the fleet to its end and return the spans of the local store by trace."""

    def run(front, runs=RUNS, patience=60):
        settings = {
            "CKPT_OBSERVE_DIR": state,
            "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages",
            "CKPT_OBSERVE_EXPORTERS": "otlp,local",
            **front.variables("grpc"),
        }
        environ = {**os.environ, **{name: str(value) for name, value in settings.items()}}
        subprocess.run(
            [sys.executable, fleet.__file__, str(tmp_path / "checkpoints"), str(runs), str(patience)], env=environ, check=True, timeout=240
        )
        return by_trace(backend_spans.from_local_store(state))

    return run


def by_trace(spans):
    """Group spans by trace, each span once: after a late answer it may have been sent twice."""
    spans_by_trace = defaultdict(dict)
    for span in spans:
        spans_by_trace[span.trace_id][span.span_id] = span
    return {trace: list(by_id.values()) for trace, by_id in spans_by_trace.items()}


def outcomes(spans):
    return {span.attributes.get(names.OUTCOME) for span in spans}


def save(trace, span_id, seconds=1, outcome="ok", start=1_800_000_000):
    """Return a save as delivery would hand it to an exporter."""
    status = "ok" if outcome == "ok" else "error"
    times = {"start_unix_nano": start * 10**9, "end_unix_nano": (start + seconds) * 10**9}
    attributes = {names.OPERATION: "save", names.OUTCOME: outcome}
    return Span(
        trace_id=trace,
        span_id=span_id,
        parent_span_id="",
        name="checkpoint.save",
        status=status,
        attributes=attributes,
        resource={"service.name": "fleet"},
        **times,
    )


def send(server, *spans):
    exporter = OtlpExporter(Endpoint(f"http://127.0.0.1:{server.grpc}", protocol="grpc"))
    exporter.send(spans)
    exporter.close()


def wait_for_spans(gateways, expected):
    """Wait until these spans have arrived: a gateway that ends keeps its queue on disk for the next start."""
    ids = {span.span_id for span in expected}
    eventually(
        lambda: {span.span_id for gateway in gateways for span in gateway.forwarded()} >= ids, "all sampled spans have arrived", seconds=60
    )


def test_gateways_have_complete_traces(tmp_path, run_fleet):
    """With a sampling rate of 100 %, each gateway has complete traces, none of the other's, and together they have all spans."""
    with two_tiers(tmp_path, SHARE_PERCENT=100, DECISION_WAIT=LONG) as (front, gateways):
        sent = run_fleet(front)
        wait_for_spans(gateways, chain(*sent.values()))
    first, second = (by_trace(gateway.forwarded()) for gateway in gateways)
    assert len(sent) == RUNS
    assert first.keys() & second.keys() == set()
    assert min(len(first), len(second)) > 0
    assert first | second == sent


def test_only_bad_traces_are_sampled(tmp_path, run_fleet):
    """With a rate of 0 %, exactly the failed, cancelled and killed runs arrive, each as a complete trace."""
    with two_tiers(tmp_path, SHARE_PERCENT=0, DECISION_WAIT=LONG) as (front, gateways):
        sent = run_fleet(front)
        bad = {trace: spans for trace, spans in sent.items() if outcomes(spans) & BAD}
        wait_for_spans(gateways, chain(*bad.values()))
    assert [sum(outcome in outcomes(spans) for spans in bad.values()) for outcome in sorted(BAD)] == [RUNS // 10] * 3
    first, second = (by_trace(gateway.forwarded()) for gateway in gateways)
    assert first | second == bad


def test_slow_operations_are_sampled(tmp_path):
    """A checkpoint above the duration limit is sampled, one below is not, and tasks may take any time."""
    slow, quick, task = save("a" * 32, "1" * 16, seconds=31), save("b" * 32, "2" * 16, seconds=29), save("c" * 32, "3" * 16, seconds=86400)
    del task.attributes[names.OPERATION]
    with two_tiers(tmp_path, SHARE_PERCENT=0, DECISION_WAIT=LONG) as (front, gateways):
        send(front, slow, quick, task)
        wait_for_spans(gateways, [slow])
    assert [span for gateway in gateways for span in gateway.forwarded()] == [slow]


def late_failure(directory, awaited, *arguments):
    """Return what a gateway forwards: of one trace a good save (1) is dropped, then one fails (2), one is good (3); then another trace fails (9)."""
    gateway = Gateway("gateway-1", directory, *arguments, SHARE_PERCENT=0, DECISION_WAIT="1s")
    late = save("a" * 32, "2" * 16, outcome="error"), save("a" * 32, "3" * 16), save("b" * 32, "9" * 16, outcome="error")
    with gateway.behind.running(), gateway.running():
        send(gateway, save("a" * 32, "1" * 16))
        eventually(lambda: gateway.count_dropped() == 1, "the good save is dropped")
        for span in late:
            send(gateway, span)
        wait_for_spans([gateway], [span for span in late if span.span_id[0] in awaited])
    return {span.span_id[0] for span in gateway.forwarded()}


def test_failure_after_the_decision_is_sampled(tmp_path):
    """If a run fails after its trace was dropped, the failure and what follows are sampled."""
    assert late_failure(tmp_path, "239") == {"2", "3", "9"}


def test_default_strategy_loses_late_failures(tmp_path):
    """Control: with the default strategy of the OTel Collector the same failure is lost."""
    assert late_failure(tmp_path, "9", "--config=yaml:processors::tail_sampling::sampling_strategy: trace-complete") == {"9"}


def failures_until_full(directory, awaited, *arguments):
    """Send failed saves until one is refused, to a gateway with a short queue and no backend. Return the accepted spans and those that arrive.

    Waits until `awaited` of the accepted spans have arrived.
    """
    short_queue = ("sending_queue::queue_size: 2", "retry_on_failure::initial_interval: 1s", "retry_on_failure::max_interval: 1s")
    arguments = (*(f"--config=yaml:exporters::otlp_grpc::{each}" for each in short_queue), *arguments)
    gateway = Gateway("gateway-1", directory, *arguments, SHARE_PERCENT=0, DECISION_WAIT=LONG)
    exporter = OtlpExporter(Endpoint(f"http://127.0.0.1:{gateway.grpc}", protocol="grpc", timeout=5))
    accepted = []
    with gateway.running():
        for number in range(1, 31):
            span = save(f"{number:032x}", f"{number:016x}", outcome="error")
            try:
                exporter.send([span])
            except ExporterRetryError:
                break
            accepted.append(span)
        exporter.close()
        with gateway.behind.running():
            wait_for_spans([gateway], accepted[:awaited])
            return accepted, gateway.forwarded()


def test_full_queue_is_not_dropped(tmp_path):
    """A gateway with a full queue refuses spans, so that they stay with the programs; all accepted spans arrive."""
    accepted, arrived = failures_until_full(tmp_path, 30)
    assert len(accepted) < 30
    assert {span.span_id for span in accepted} <= {span.span_id for span in arrived}


def test_default_queue_drops_spans(tmp_path):
    """Control: by default the OTel Collector accepts all spans and loses most of them."""
    accepted, arrived = failures_until_full(tmp_path, 1, "--config=yaml:exporters::otlp_grpc::sending_queue::block_on_overflow: false")
    assert len(accepted) == 30
    assert len({span.span_id for span in arrived}) < 30


def test_gateway_that_is_down_loses_nothing(tmp_path, run_fleet):
    """While one gateway is down, its traces are refused, stay with the program, and arrive when it is running again."""
    front, gateways = tiers(tmp_path, SHARE_PERCENT=100, DECISION_WAIT=LONG)
    with ExitStack() as running:
        for server in (*(each.behind for each in gateways), gateways[0], front):
            running.enter_context(server.running())
        before = run_fleet(front, runs=12, patience=1)
        running.enter_context(gateways[1].running())
        sent = run_fleet(front, runs=1)
        wait_for_spans(gateways, chain(*sent.values()))
    first, second = (by_trace(gateway.forwarded()) for gateway in gateways)
    assert before.keys() < sent.keys()
    assert second.keys() & before.keys()
    assert first | second == sent


class RemoteWritePrometheus(telemetry.Prometheus):
    """Prometheus that accepts remote write, as a cluster does."""

    def __init__(self, directory):
        directory.mkdir()
        super().__init__(directory)

    def command(self):
        return [*super().command(), "--web.enable-remote-write-receiver"]


def test_remote_write_of_numbers_and_exemplars(tmp_path, monkeypatch, run_agent):
    """Through the front and the Prometheus of deploy/scale, a remote Prometheus gets the numbers, their cluster, and exemplars."""
    remote, near = RemoteWritePrometheus(tmp_path / "remote"), RemoteWritePrometheus(tmp_path / "near")
    text = (PROJECT / "deploy" / "scale" / "prometheus.yml").read_text()
    assert "http://metrics.example:9090" in text
    near.configuration.write_text(text.replace("http://metrics.example:9090", f"http://127.0.0.1:{remote.port}"))
    front = compose_services.OtlpService("collector", "otelcol", tmp_path, SCALE, METRICS_ENDPOINT=near.otlp.removesuffix("/v1/metrics"))
    monkeypatch.setenv("CLUSTER", "north")
    with remote.running(), near.running(), front.running():
        endpoint = f"http://127.0.0.1:{front.http}/v1/metrics"
        run_agent(
            "work",
            "prometheus,local",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=endpoint,
            OTEL_EXPORTER_PROMETHEUS_PORT=processes.free_port(),
            OTEL_SERVICE_NAME="handed-on",
        )
        counted = 'sum by (cluster, outcome) (checkpoint_operations_total{job="handed-on"}) > 0'
        expected = {("north", "ok"): 3, ("north", "error"): 1, ("north", "interrupted"): 1}
        eventually(lambda: remote.query(counted) == expected, f"the remote Prometheus has {expected}", seconds=60)
        eventually(
            lambda: remote.exemplars("checkpoint_operation_duration_seconds_bucket"), "the remote Prometheus has exemplars", seconds=60
        )
