"""Measures the cost of metrics outside the hot path: `python -m benchmarks.metrics`.

Adds saves with four phases and sizes to the store in batches of 100, as delivery does at 1,000 saves per second: first for 5 tasks, then
for 20,000 (CPU time of this process). Then scrapes the result ten times (wall time). The last lines compare our text writer with
`generate_latest` of prometheus_client on the same data.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from ckpt_observe.exporters.prometheus_collector import SnapshotCollector
from ckpt_observe.exporters.prometheus_text import OPENMETRICS, TEXT, render
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.metricstore.metric_store import MetricStore
from ckpt_observe.metricstore.snapshot import build_snapshot
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.testing.spans import make_tree

SAVES, BATCH, TASKS, SCRAPES = 5_000, 100, 20_000, 10
SAVE_ATTRIBUTES = {
    names.SYSTEM: "reference", names.STORE: "file", names.SIZE_SERIALIZED: 4096, names.SIZE_STORED: 2048, names.RATIO: 2.0,
    names.THROUGHPUT: 1e6, names.CPU_TIME: 0.001, names.IO_WRITE: 4096,
}  # fmt: skip


def make_saves(first: int, count: int, tasks: int) -> list[Span]:
    spans = []
    for number in range(first, first + count):
        tree = make_tree(number, task=f"task-{number % tasks}", phases=("serialize", "compress", "write", "commit"), start=number * 10)
        tree[-2].attributes.update(SAVE_ATTRIBUTES)
        spans += tree[:-1]  # without the end of the task
    return spans


def add_saves(store: MetricStore, first: int, count: int, tasks: int) -> float:
    """Return the CPU microseconds per save."""
    used = 0.0
    for start in range(first, first + count, BATCH):
        batch = make_saves(start, BATCH, tasks)
        before = time.process_time()
        store.add_spans(batch)
        used += time.process_time() - before
    return used / count * 1e6


def measure(write: Callable[[], bytes]) -> tuple[float, float, bytes]:
    """Return the best and the median milliseconds, and the page."""
    times = []
    for _ in range(SCRAPES):
        before = time.perf_counter()
        page = write()
        times.append((time.perf_counter() - before) * 1e3)
    return min(times), sorted(times)[SCRAPES // 2], page


def compare_writers(store: MetricStore, directory: Path) -> None:
    """Print our writer against prometheus_client's, both on the same data in memory; theirs also with collecting, as in a scrape."""
    stored = store.read()
    snapshot = build_snapshot(stored, read_activity(directory), "0")
    collector = SnapshotCollector(lambda: (stored, snapshot))
    collected = list(collector.collect())
    families = SimpleNamespace(collect=lambda: collected)
    for format_name, content_type, generate in (("text", TEXT, generate_latest), ("OpenMetrics", OPENMETRICS, generate_openmetrics)):
        ours, _, page = measure(lambda kind=content_type: render(snapshot, kind))
        theirs, _, other_page = measure(lambda function=generate: function(families))
        with_collecting, _, _ = measure(lambda function=generate: function(collector))
        assert len(page.splitlines()) == len(other_page.splitlines())
        label = f"writer, {format_name} ({len(page.splitlines()):,} lines):"
        ratios = f"1 : {theirs / ours:.1f}, with collecting 1 : {with_collecting / ours:.1f}"
        print(f"{label:38} ours {ours:.1f} ms, prometheus_client {theirs:.1f} ms = {ratios}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = MetricStore(directory / "metrics.db")
        add_saves(store, 1, BATCH, 5)
        print(f"add, 5 tasks:      {add_saves(store, 1_000, SAVES, 5):6.1f} µs of CPU per save")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"add, {TASKS:,} tasks: {add_saves(store, 100_000, TASKS, TASKS):6.1f} µs of CPU per save")
        for format_name, content_type in (("text", TEXT), ("OpenMetrics", OPENMETRICS)):
            best, median, page = measure(
                lambda kind=content_type: render(build_snapshot(store.read(), read_activity(directory), "0"), kind)
            )
            size = f"{len(page.splitlines()):,} lines, {len(page) >> 10:,} KiB"
            print(f"scrape, {format_name}: best {best:.1f} ms, median {median:.1f} ms, {size}")
        print(f"memory of this process grew by {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory >> 10} MiB")
        compare_writers(store, directory)
        store.close()
        print(f"on disk: {sum(path.stat().st_size for path in directory.iterdir()) >> 10:,} KiB")


if __name__ == "__main__":
    main()
