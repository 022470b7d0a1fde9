"""What observing costs the caller's thread: `python -m benchmarks.overhead`.

One process, one run, turn and turn about: a save with four phases, in a library that does nothing, (a) bare, (b) patched and observed by
ckpt_observe, (c) with the same tree and attributes written into it by hand on the OpenTelemetry SDK with a batch processor. Both have a
exporter that takes spans and does nothing. The figures are what b and c add to a, alone and beside three busy threads.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import ckpt_observe
from benchmarks.nothing import ByHand, Library, NothingInstrumentor
from ckpt_observe import wiring
from ckpt_observe.exporter import Exporter

TURNS, CALLS = 80, 25


class Nowhere(SpanExporter, Exporter):
    """Takes spans of both and does nothing with them."""

    name = "local"

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def send(self, spans: Any) -> None: ...

    def close(self) -> None: ...


def timed(call: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def measure(busy: int) -> dict[str, list[float]]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=2**16))
    library, by_hand = Library(), ByHand(provider.get_tracer("by hand"))
    instrumentor = NothingInstrumentor()
    stop = threading.Event()
    for _ in range(busy):
        threading.Thread(target=burn, args=(stop,), daemon=True).start()
    times: dict[str, list[float]] = {"bare": [], "ours": [], "sdk": [], "off": []}
    gc.collect()
    for _ in range(TURNS):
        times["bare"] += timed(lambda: library.save("run-42", None, step=12))
        times["sdk"] += timed(lambda: by_hand.save("run-42", None, step=12))
        instrumentor.instrument()
        times["ours"] += timed(lambda: library.save("run-42", None, step=12))
        patches = list(instrumentor._patches.values())
        for patch in patches:
            patch.switch.off()  # as when a patch cannot be removed, because somebody's closure holds it
        times["off"] += timed(lambda: library.save("run-42", None, step=12))
        instrumentor.uninstrument()
    stop.set()
    return {name: sorted(values) for name, values in times.items()}


def burn(stop: threading.Event) -> None:
    count = 0
    while not stop.is_set():
        count += 1


def figures(values: list[float]) -> dict[str, float]:
    return {"p50": values[len(values) // 2], "p99": values[len(values) * 99 // 100], "mean": statistics.mean(values)}


def main() -> None:
    wiring.EXPORTERS["local"] = lambda _settings: Nowhere()
    with tempfile.TemporaryDirectory() as directory:
        watch = ckpt_observe.observe(exporters="local", dir=directory, service="benchmark", enabled=True)
        with ckpt_observe.checkpoint("save"):
            pass  # the first operation makes the journal
        for busy in (0, 3):
            times = {name: figures(values) for name, values in measure(busy).items()}
            bare = times.pop("bare")
            print(f"{busy} busy threads; the bare save takes p50 {bare['p50']:.1f}, p99 {bare['p99']:.1f}, mean {bare['mean']:.1f} µs")
            added = {name: {key: found[key] - bare[key] for key in bare} for name, found in times.items()}
            for name, row in added.items():
                print(f"  {name:5} adds " + "".join(f"  {key} {value:9.1f}" for key, value in row.items()) + " µs")
            print("  ours : sdk   " + "   ".join(f"{key} 1 : {added['sdk'][key] / added['ours'][key]:.1f}" for key in bare))
        print(f"pool: {watch._journal.pool.counts if watch._journal else None}")
        watch.close(timeout=30)


if __name__ == "__main__":
    main()
