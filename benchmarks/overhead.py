"""Measures the time that observation adds on the caller's thread: `python -m benchmarks.overhead [SECONDS]`.

A save with four phases, in a library that does nothing, runs alternately in one process: (a) bare, (b) patched by ckpt_observe, (c) with
the same span tree and attributes written by hand with the OpenTelemetry SDK and its batch processor. Both (b) and (c) have an exporter that
discards spans. The output is what (b) and (c) add to (a), alone and with three busy threads. `unsampled` is (b) in a trace that is not
sampled, so that only metrics count it; `dropped` is the same without metrics, so that it is not recorded: as the root of a trace, and
`inside` one that is not recorded. Then `benchmarks.saturation` measures (b) and (c) for SECONDS each, 60 by default.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ckpt_observe
from benchmarks import saturation
from benchmarks.nothing import Library, NothingInstrumentor
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import events

TURNS, CALLS = 80, 25


def measure_calls(call: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def measure(busy: int) -> dict[str, list[float]]:
    library, by_hand = Library(), saturation.by_hand()
    instrumentor = NothingInstrumentor()
    stop = saturation.start_busy_threads(busy)
    times: dict[str, list[float]] = {"bare": [], "ours": [], "unsampled": [], "dropped": [], "inside": [], "sdk": [], "off": []}
    gc.collect()
    for _ in range(TURNS):
        times["bare"] += measure_calls(lambda: library.save("run-42", None, step=12))
        times["sdk"] += measure_calls(lambda: by_hand.save("run-42", None, step=12))
        instrumentor.instrument()
        times["ours"] += measure_calls(lambda: library.save("run-42", None, step=12))
        recorder.samples, recorder.unsampled = lambda _trace, _parent: False, events.NOTHING
        times["unsampled"] += measure_calls(lambda: library.save("run-42", None, step=12))
        recorder.unsampled = None
        times["dropped"] += measure_calls(lambda: library.save("run-42", None, step=12))
        with ckpt_observe.task("left out"):
            times["inside"] += measure_calls(lambda: library.save("run-42", None, step=12))
        recorder.samples = None
        patches = list(instrumentor._patches.values())
        for patch in patches:
            patch.switch.off()  # as if the patch could not be removed because a closure holds it
        times["off"] += measure_calls(lambda: library.save("run-42", None, step=12))
        instrumentor.uninstrument()
    stop.set()
    return {name: sorted(values) for name, values in times.items()}


def summarize(values: list[float]) -> dict[str, float]:
    return {"p50": values[len(values) // 2], "p99": values[len(values) * 99 // 100], "mean": statistics.mean(values)}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        watch = saturation.observe(directory)
        for busy in (0, 3):
            times = {name: summarize(values) for name, values in measure(busy).items()}
            bare = times.pop("bare")
            print(f"{busy} busy threads; a bare save takes p50 {bare['p50']:.1f}, p99 {bare['p99']:.1f}, mean {bare['mean']:.1f} µs")
            added = {name: {key: summary[key] - bare[key] for key in bare} for name, summary in times.items()}
            for name, row in added.items():
                print(f"  {name:9} adds " + "".join(f"  {key} {value:9.1f}" for key, value in row.items()) + " µs")
            print("  ours : sdk   " + "   ".join(f"{key} 1 : {added['sdk'][key] / added['ours'][key]:.1f}" for key in bare))
        print(f"pages: {saturation.pages_summary(watch)}")
        watch.close(timeout=30)
    saturation.main(*map(float, sys.argv[1:]))


if __name__ == "__main__":
    main()
