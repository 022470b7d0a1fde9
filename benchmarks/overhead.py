"""What observing costs the caller's thread: `python -m benchmarks.overhead`.

One process, one run, turn and turn about: the reference core's own `save`, its serializer, codec and store replaced by ones that do
nothing, (a) bare, (b) observed by ckpt_observe, (c) with the same tree and attributes written by hand on the OpenTelemetry SDK with a
batch processor. The figures are what b and c add to a, alone and beside three busy threads.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import ckpt_observe
from benchmarks.nothing import checkpointer
from ckpt_observe.core import steps
from ckpt_observe.semconv import attributes as names

BLOCKS, TURNS, CALLS = 6, 60, 25
STEP, DIGEST = 12, "sha256:" + "0" * 64

GIVEN = {
    names.SYSTEM: "reference",
    names.STORE: "nothing",
    names.LOCATION: "nothing://",
    names.FORMAT: "nothing",
    names.CODEC: "nothing",
    names.TASK_ID: "run-42",
    names.STEP: STEP,
}
FOUND = {
    names.ID: "20260101T000000.000000-00000000",
    names.SIZE_SERIALIZED: 2048,
    names.SIZE_STORED: 800,
    names.RATIO: 2.56,
    names.DIGEST: DIGEST,
    names.STATE_TYPE: "dict",
    names.STATE_KEYS: 1,
}
BYTES = {names.PHASE_BYTES_IN: 2048, names.PHASE_BYTES_OUT: 800}


class Nowhere(SpanExporter):
    """Takes spans of both and does nothing with them: what is measured is the caller's thread, not a back end."""

    name, lasting = "local", True

    def export(self, spans):  # noqa: ARG002
        return SpanExportResult.SUCCESS

    def send(self, spans): ...

    def close(self): ...


class ByHand:
    """Spans written by hand around the save and each of its steps."""

    def __init__(self) -> None:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=2**16))
        self.tracer = provider.get_tracer("by hand")
        self.originals = {name: getattr(steps, name) for name in ("serialize", "compress", "write", "confirm")}

    def on(self) -> None:
        for name, original in self.originals.items():
            setattr(steps, name, self._around(name, original))

    def off(self) -> None:
        for name, original in self.originals.items():
            setattr(steps, name, original)

    def _around(self, name: str, original: Callable) -> Callable:
        tracer, span_name = self.tracer, f"checkpoint.{name}"

        def call(*args):
            with tracer.start_as_current_span(span_name, attributes=BYTES):
                return original(*args)

        return call

    def save(self, bare: Callable[[], None]) -> None:
        with self.tracer.start_as_current_span("checkpoint.save", attributes=GIVEN) as span:
            bare()
            span.set_attributes(FOUND)


class Ours:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def on(self) -> None:
        self.watch = ckpt_observe.observe(exporters="local", dir=self.directory, service="benchmark", enabled=True)
        checkpointer().save("warm-up", {})

    def settle(self) -> None:
        """Between two turns the drain catches up, so that its work is not counted as the caller's."""
        self.watch.flush(timeout=30)

    def off(self) -> None:
        self.watch.close(timeout=30)


def timed(call: Callable[[], None]) -> list[float]:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def measure(busy: int, directory: str) -> dict[str, list[float]]:
    saver = checkpointer()

    def bare() -> None:
        saver.save("run-42", {}, step=STEP)

    by_hand, ours = ByHand(), Ours(directory)
    stop = threading.Event()
    threads = [threading.Thread(target=burn, args=(stop,), daemon=True) for _ in range(busy)]
    for thread in threads:
        thread.start()
    times: dict[str, list[float]] = {"bare": [], "ours": [], "sdk": [], "off": []}
    gc.collect()
    for _ in range(BLOCKS):
        ours.on()
        for _ in range(TURNS // BLOCKS):
            ours.settle()
            times["ours"] += timed(bare)
        ckpt_observe.api.recorder.on = False
        for _ in range(TURNS // BLOCKS):
            times["off"] += timed(bare)
        ckpt_observe.api.recorder.on = True
        ours.off()
        for _ in range(TURNS // BLOCKS):
            times["bare"] += timed(bare)
            by_hand.on()
            times["sdk"] += timed(lambda: by_hand.save(bare))
            by_hand.off()
    stop.set()
    return {name: sorted(values) for name, values in times.items()}


def burn(stop: threading.Event) -> None:
    count = 0
    while not stop.is_set():
        count += 1


def at(values: list[float], share: float) -> float:
    return values[int(len(values) * share)]


def main() -> None:
    ckpt_observe.api.SINKS["local"] = lambda _settings: Nowhere()
    with tempfile.TemporaryDirectory() as directory:
        for busy in (0, 3):
            times = measure(busy, directory)
            bare = {"p50": at(times["bare"], 0.5), "p99": at(times["bare"], 0.99), "mean": statistics.mean(times["bare"])}
            print(f"{busy} busy threads; bare save p50 {bare['p50']:.1f} µs, p99 {bare['p99']:.1f} µs, mean {bare['mean']:.1f} µs")
            added = {}
            for name in ("ours", "sdk", "off"):
                values = times[name]
                found = {"p50": at(values, 0.5), "p99": at(values, 0.99), "mean": statistics.mean(values)}
                added[name] = {key: found[key] - bare[key] for key in bare}
                print(f"  {name:5} adds  p50 {added[name]['p50']:8.1f}  p99 {added[name]['p99']:9.1f}  mean {added[name]['mean']:8.1f} µs")
            ratios = "  ".join(f"{key} 1 : {added['sdk'][key] / max(added['ours'][key], 0.01):.1f}" for key in bare)
            print(f"  ours : sdk   {ratios}")


if __name__ == "__main__":
    main()
