"""What metrics cost off the hot path: `python -m benchmarks.metrics`.

Saves with four phases and sizes are folded in batches of 100, as the delivery of 1,000 saves a second would send them; then 20,000 task
names, and a scrape of what they left. CPU time of this process, and wall time of the best of ten scrapes.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from ckpt_observe.exporters.prometheus_text import OPENMETRICS, TEXT, render
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.metricstore.snapshot import build_snapshot
from ckpt_observe.metricstore.store import MetricStore
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.testing.spans import make_tree

SAVES, BATCH, TASKS = 5_000, 100, 20_000
FACTS = {
    names.SYSTEM: "reference", names.STORE: "file", names.SIZE_SERIALIZED: 4096, names.SIZE_STORED: 2048, names.RATIO: 2.0,
    names.THROUGHPUT: 1e6, names.CPU_TIME: 0.001, names.IO_WRITE: 4096,
}  # fmt: skip


def saves(first: int, count: int, tasks: int) -> list[Span]:
    made = []
    for number in range(first, first + count):
        tree = make_tree(number, task=f"task-{number % tasks}", phases=("serialize", "compress", "write", "commit"), start=number * 10)
        tree[-2].attributes.update(FACTS)
        made += tree[:-1]  # without the end of the task
    return made


def fold(store: MetricStore, first: int, count: int, tasks: int) -> float:
    """CPU microseconds a save."""
    used = 0.0
    for start in range(first, first + count, BATCH):
        batch = saves(start, BATCH, tasks)
        before = time.process_time()
        store.add_spans(batch)
        used += time.process_time() - before
    return used / count * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = MetricStore(Path(directory) / "metrics.db")
        fold(store, 1, BATCH, 5)
        print(f"fold, 5 tasks:        {fold(store, 1_000, SAVES, 5):6.1f} µs of CPU a save")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"fold, {TASKS:,} names: {fold(store, 100_000, TASKS, TASKS):6.1f} µs of CPU a save")
        for kind, content_type in (("text", TEXT), ("OpenMetrics", OPENMETRICS)):
            times = []
            for _ in range(10):
                before = time.perf_counter()
                page = render(build_snapshot(store.read(), read_activity(Path(directory)), "0"), content_type)
                times.append(time.perf_counter() - before)
            took = f"best {min(times) * 1e3:.1f} ms, median {sorted(times)[5] * 1e3:.1f} ms"
            print(f"scrape, {kind}: {took}, {len(page.splitlines()):,} lines, {len(page) >> 10:,} KiB")
        print(f"memory of this process grew by {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory >> 10} MiB")
        store.close()
        size = sum(path.stat().st_size for path in Path(directory).iterdir())
        print(f"on disk: {size >> 10:,} KiB")


if __name__ == "__main__":
    main()
