"""Measures saves in a program whose threads are all busy: part of `python -m benchmarks.overhead`.

Each row is one process with three threads that never wait, and a fourth that saves: back to back, or 300 times per second. Whatever gives
up the GIL on that thread, such as a system call, waits until the busy threads give it back. The saves are those of `benchmarks.nothing`,
observed by ckpt_observe or with spans written by hand with the OpenTelemetry SDK. Both have an exporter that discards spans.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import ckpt_observe
from benchmarks.nothing import ByHand, Library, NothingInstrumentor
from ckpt_observe import exporter_selection
from ckpt_observe.exporter import Exporter

BUSY_THREADS = 3
PACES = {"back to back": 0, "300 saves/s": 300}
SECONDS = 60.0


class DiscardingExporter(SpanExporter, Exporter):
    """Discards spans, as an exporter of the SDK and of ckpt_observe."""

    name = "local"

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def send(self, spans: Any) -> None: ...

    def close(self) -> None: ...


def burn(stop: threading.Event) -> None:
    count = 0
    while not stop.is_set():
        count += 1


def start_busy_threads(count: int) -> threading.Event:
    """Start threads that never wait. Return the event that stops them."""
    stop = threading.Event()
    for _ in range(count):
        threading.Thread(target=burn, args=(stop,), daemon=True).start()
    return stop


def by_hand() -> ByHand:
    """Return the library with spans of the SDK."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(DiscardingExporter(), max_queue_size=2**16))
    return ByHand(provider.get_tracer("by hand"))


def observe(directory: str) -> ckpt_observe.Watch:
    """Observe this process, with an exporter that discards spans."""
    exporter_selection.EXPORTERS["local"] = lambda _settings: DiscardingExporter()
    watch = ckpt_observe.observe(exporters="local", dir=directory, service="benchmark", enabled=True)
    with ckpt_observe.checkpoint("save"):
        pass  # the first operation creates the journal
    return watch


def pages_summary(watch: ckpt_observe.Watch) -> str:
    """Return how far the pages grew, who added them, and which operations had none, as text."""
    pool: Any = watch._journal.pool  # type: ignore[union-attr]
    added_by_callers = pool.counts["grown"]
    added_ahead = len(pool._files) - 1 - added_by_callers
    return (
        f"{pool._page_count()} pages; files added ahead {added_ahead}, by callers {added_by_callers}; spilled {pool.counts['spilled']},"
        f" unprotected {pool.counts['unprotected']}, lost {pool.counts['lost']}"
    )


def pace(rate: int, seconds: float) -> Iterator[int]:
    """Yield the number of each save, when it is due. A late thread catches up without a pause. A rate of 0 means without any pause."""
    start = time.perf_counter()
    number = 0
    while (now := time.perf_counter() - start) < seconds:
        if rate and number / rate > now:
            time.sleep(number / rate - now)
        yield number
        number += 1


def measure(save: Callable[..., Any], rate: int, seconds: float) -> dict[str, float]:
    times = []
    for number in pace(rate, seconds):
        before = time.perf_counter_ns()
        save("run-42", None, step=number)
        times.append(time.perf_counter_ns() - before)
    times.sort()
    quantiles = {f"p{100 * part:g}": times[int(len(times) * part)] / 1000 for part in (0.5, 0.99, 0.999)}
    return {"mean": statistics.mean(times) / 1000, **quantiles, "max": times[-1] / 1000, "saves": len(times)}


def run(program: str, rate: str, seconds: str) -> None:
    """Measure one row, in a process of its own, and print it as JSON."""
    pages = ""
    with tempfile.TemporaryDirectory() as directory:
        if program == "ours":
            watch, library = observe(directory), Library()
            NothingInstrumentor().instrument()
        else:
            library = by_hand()
        stop = start_busy_threads(BUSY_THREADS)
        row = measure(library.save, int(rate), float(seconds))
        stop.set()
        if program == "ours":
            pages = pages_summary(watch)
            watch.close(timeout=0)
    print(msgspec.json.encode((row, pages)).decode(), flush=True)
    os._exit(0)  # without waiting for the SDK to export its queue


def main(seconds: float = SECONDS) -> None:
    for name, rate in PACES.items():
        print(f"{BUSY_THREADS} busy threads, {name} for {seconds:g} s; load average {os.getloadavg()[0]:.1f}")
        rows = {}
        for program in ("ours", "sdk"):
            command = [sys.executable, "-m", "benchmarks.saturation", program, str(rate), str(seconds)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            row, pages = msgspec.json.decode(output)
            rows[program] = row
            print(f"  {program:5}" + "".join(f"  {key} {value:9.1f}" for key, value in row.items()) + (f"  ({pages})" if pages else ""))
        ratios = {key: rows["sdk"][key] / rows["ours"][key] for key in rows["sdk"] if key != "saves"}
        print("  ours : sdk   " + "   ".join(f"{key} 1 : {ratio:.1f}" for key, ratio in ratios.items()), flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:]) if len(sys.argv) > 2 else main(*map(float, sys.argv[1:]))
