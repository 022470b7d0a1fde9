"""deploy/scale: a front and two gateways for real, and what they keep of a fleet; remote write."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from itertools import chain

import deployed
import fleet
import processes
import pytest
import received
import telemetry
from deployed import PROJECT, SCALE
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
"""More than a test takes: what waits for a decision waits until the gateway ends."""


class Gateway(deployed.OtlpService):
    """A gateway of the compose file, and a Collector in Jaeger's place that writes down what it lets through."""

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

    def kept(self):
        return received.of_collector(self.behind.file)

    def not_kept(self):
        """How many traces it has decided not to keep."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30).read().decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if "global_count_traces_sampled" in sample.name and sample.labels.get("decision") == "not_sampled"
        )


def tiers(directory, **variables):
    """A front and its two gateways, not running yet."""
    gateways = [Gateway(name, directory, **variables) for name in ("gateway-1", "gateway-2")]
    addresses = f"[{', '.join(f'127.0.0.1:{each.grpc}' for each in gateways)}]"
    return deployed.OtlpService("collector", "otelcol", directory, SCALE, GATEWAYS=addresses), gateways


@contextmanager
def two_tiers(directory, **variables):
    """The same, running; a gateway's end decides on what still waits."""
    front, gateways = tiers(directory, **variables)
    with ExitStack() as running:
        for server in (*(each.behind for each in gateways), *gateways, front):
            running.enter_context(server.running())
        yield front, gateways


@pytest.fixture
def live(state, tmp_path):
    """Runs the fleet to its end and gives its spans by trace, as the local store has them."""

    def run(front, runs=RUNS, patience=60):
        own = {
            "CKPT_OBSERVE_DIR": state,
            "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages",
            "CKPT_OBSERVE_EXPORTERS": "otlp,local",
            **front.variables("grpc"),
        }
        environ = {**os.environ, **{name: str(value) for name, value in own.items()}}
        subprocess.run(
            [sys.executable, fleet.__file__, str(tmp_path / "checkpoints"), str(runs), str(patience)], env=environ, check=True, timeout=240
        )
        return by_trace(received.of_local_store(state))

    return run


def by_trace(spans):
    """Each span once: one that was repeated, because an answer was late, is the same span."""
    found = defaultdict(dict)
    for span in spans:
        found[span.trace_id][span.span_id] = span
    return {trace: list(by_id.values()) for trace, by_id in found.items()}


def outcomes(spans):
    return {span.attributes.get(names.OUTCOME) for span in spans}


def save(trace, span_id, seconds=1, outcome="ok", start=1_800_000_000):
    """A save, as the delivery would hand it to an exporter."""
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


def arrive(gateways, wanted):
    """Waits for these spans: a gateway that ends keeps its queue on disk for the next start."""
    ids = {span.span_id for span in wanted}
    eventually(lambda: {span.span_id for gateway in gateways for span in gateway.kept()} >= ids, "all that is kept has arrived", seconds=60)


def test_whole_traces_at_each_gateway(tmp_path, live):
    """With everything kept, each gateway has whole traces and none of the other's; together they have all spans."""
    with two_tiers(tmp_path, SHARE_PERCENT=100, DECISION_WAIT=LONG) as (front, gateways):
        sent = live(front)
        arrive(gateways, chain(*sent.values()))
    first, second = (by_trace(gateway.kept()) for gateway in gateways)
    assert len(sent) == RUNS
    assert first.keys() & second.keys() == set()
    assert min(len(first), len(second)) > 0
    assert first | second == sent


def test_what_went_wrong_is_kept_and_nothing_else(tmp_path, live):
    """Of a fleet with nothing kept by chance: every failed, cancelled and killed run arrives whole, the trace of each kill -9 too, and no other run."""
    with two_tiers(tmp_path, SHARE_PERCENT=0, DECISION_WAIT=LONG) as (front, gateways):
        sent = live(front)
        bad = {trace: spans for trace, spans in sent.items() if outcomes(spans) & BAD}
        arrive(gateways, chain(*bad.values()))
    assert [sum(outcome in outcomes(spans) for spans in bad.values()) for outcome in sorted(BAD)] == [RUNS // 10] * 3
    first, second = (by_trace(gateway.kept()) for gateway in gateways)
    assert first | second == bad


def test_slow_is_kept(tmp_path):
    """A checkpoint that took longer than is slow is kept, one that did not is not, and a task may take as long as it likes."""
    slow, quick, task = save("a" * 32, "1" * 16, seconds=31), save("b" * 32, "2" * 16, seconds=29), save("c" * 32, "3" * 16, seconds=86400)
    del task.attributes[names.OPERATION]
    with two_tiers(tmp_path, SHARE_PERCENT=0, DECISION_WAIT=LONG) as (front, gateways):
        send(front, slow, quick, task)
        arrive(gateways, [slow])
    assert [span for gateway in gateways for span in gateway.kept()] == [slow]


def late_failure(directory, awaited, *arguments):
    """What a gateway keeps of a trace whose good save (1) it had decided not to keep, and whose next (2) fails, a third (3) not; another trace's fails last (9)."""
    gateway = Gateway("gateway-1", directory, *arguments, SHARE_PERCENT=0, DECISION_WAIT="1s")
    late = save("a" * 32, "2" * 16, outcome="error"), save("a" * 32, "3" * 16), save("b" * 32, "9" * 16, outcome="error")
    with gateway.behind.running(), gateway.running():
        send(gateway, save("a" * 32, "1" * 16))
        eventually(lambda: gateway.not_kept() == 1, "the good save is not kept")
        for span in late:
            send(gateway, span)
        arrive([gateway], [span for span in late if span.span_id[0] in awaited])
    return {span.span_id[0] for span in gateway.kept()}


def test_failure_long_after_the_decision_is_kept(tmp_path):
    """A run that saved well for days and fails then: the failure is kept, and what comes after it, though its trace had been decided against."""
    assert late_failure(tmp_path, "239") == {"2", "3", "9"}


def test_default_strategy_would_lose_it(tmp_path):
    """Control: with the Collector's default strategy the same failure is lost."""
    assert late_failure(tmp_path, "9", "--config=yaml:processors::tail_sampling::sampling_strategy: trace-complete") == {"9"}


def failures_until_full(directory, awaited, *arguments):
    """Of failed saves sent until one is refused (or to the end) while nobody is behind a gateway with a short queue: those taken, and those that arrive.
    Waits for as many of the taken as are awaited."""
    hurried = ("sending_queue::queue_size: 2", "retry_on_failure::initial_interval: 1s", "retry_on_failure::max_interval: 1s")
    arguments = (*(f"--config=yaml:exporters::otlp_grpc::{each}" for each in hurried), *arguments)
    gateway = Gateway("gateway-1", directory, *arguments, SHARE_PERCENT=0, DECISION_WAIT=LONG)
    exporter = OtlpExporter(Endpoint(f"http://127.0.0.1:{gateway.grpc}", protocol="grpc", timeout=5))
    taken = []
    with gateway.running():
        for number in range(1, 31):
            span = save(f"{number:032x}", f"{number:016x}", outcome="error")
            try:
                exporter.send([span])
            except ExporterRetryError:
                break
            taken.append(span)
        exporter.close()
        with gateway.behind.running():
            arrive([gateway], taken[:awaited])
            return taken, gateway.kept()


def test_full_queue_is_not_dropped(tmp_path):
    """F: when the gateway's queue is full it takes no more, so that the rest stays with the programs; all that it took arrives."""
    taken, kept = failures_until_full(tmp_path, 30)
    assert len(taken) < 30
    assert {span.span_id for span in taken} <= {span.span_id for span in kept}


def test_full_queue_would_be_dropped(tmp_path):
    """Control: as the Collector does it by default, all are taken, and most are lost."""
    taken, kept = failures_until_full(tmp_path, 1, "--config=yaml:exporters::otlp_grpc::sending_queue::block_on_overflow: false")
    assert len(taken) == 30
    assert len({span.span_id for span in kept}) < 30


def test_gateway_that_is_away_loses_nothing(tmp_path, live):
    """F: while one gateway is away its traces are refused, so they stay with the program, and arrive when it is back."""
    front, gateways = tiers(tmp_path, SHARE_PERCENT=100, DECISION_WAIT=LONG)
    with ExitStack() as running:
        for server in (*(each.behind for each in gateways), gateways[0], front):
            running.enter_context(server.running())
        before = live(front, runs=12, patience=1)
        running.enter_context(gateways[1].running())
        sent = live(front, runs=1)
        arrive(gateways, chain(*sent.values()))
    first, second = (by_trace(gateway.kept()) for gateway in gateways)
    assert before.keys() < sent.keys()
    assert second.keys() & before.keys()
    assert first | second == sent


class Writable(telemetry.Prometheus):
    """One that takes remote write, as a cluster does."""

    def __init__(self, directory):
        directory.mkdir()
        super().__init__(directory)

    def command(self):
        return [*super().command(), "--web.enable-remote-write-receiver"]


def test_remote_write_brings_numbers_and_exemplars(tmp_path, monkeypatch, run_agent):
    """Through the front and the Prometheus of deploy/scale: a far one has the numbers, who said them, and the way to the traces."""
    far, near = Writable(tmp_path / "far"), Writable(tmp_path / "near")
    text = (PROJECT / "deploy" / "scale" / "prometheus.yml").read_text()
    assert "http://metrics.example:9090" in text
    near.configuration.write_text(text.replace("http://metrics.example:9090", f"http://127.0.0.1:{far.port}"))
    front = deployed.OtlpService("collector", "otelcol", tmp_path, SCALE, METRICS_ENDPOINT=near.otlp.removesuffix("/v1/metrics"))
    monkeypatch.setenv("CLUSTER", "north")
    with far.running(), near.running(), front.running():
        endpoint = f"http://127.0.0.1:{front.http}/v1/metrics"
        run_agent(
            "work",
            "prometheus,local",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=endpoint,
            OTEL_EXPORTER_PROMETHEUS_PORT=processes.free_port(),
            OTEL_SERVICE_NAME="handed-on",
        )
        counted = 'sum by (cluster, outcome) (checkpoint_operations_total{job="handed-on"}) > 0'
        wanted = {("north", "ok"): 3, ("north", "error"): 1, ("north", "interrupted"): 1}
        eventually(lambda: far.query(counted) == wanted, f"the far one has {wanted}", seconds=60)
        eventually(lambda: far.exemplars("checkpoint_operation_duration_seconds_bucket"), "the far one has exemplars", seconds=60)
