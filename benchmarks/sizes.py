"""Measures the bytes of an operation in transit and on disk: `python -m benchmarks.sizes`. docs/scale.md quotes the results.

The observed reference core saves a small state with compression, fails once per run, and restores. The output is the size of the spans as
OTLP (in batches of 512, as sent) with and without gzip, the size of the local store, and the number of metric series. Nothing is sent.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import ckpt_observe
from ckpt_observe import __version__
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import SerializationError
from ckpt_observe.exporters.otlp_encoding import encode
from ckpt_observe.exporters.otlp_metrics import encode_snapshot
from ckpt_observe.exporters.prometheus_text import TEXT, render
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore import FILENAME, TraceReader

RUNS, SAVES, BATCH = 20, 50, 512


def record_runs(directory: Path) -> list[Span]:
    """Run tasks that save and restore. Return their spans from the local store."""
    watch = ckpt_observe.observe(exporters="local", dir=directory, service="trainer")
    checkpointer = Checkpointer(str(directory / "checkpoints"), compression="gzip")
    for run in range(RUNS):
        with ckpt_observe.task("train", id=f"run-{run}", user="ada", session="monday"):
            for step in range(SAVES):
                checkpointer.save(f"run-{run}", {"step": step, "messages": ["some words"] * 20}, step=step)
            try:
                checkpointer.save(f"run-{run}", {"socket": object()}, step=SAVES)
            except SerializationError:
                pass
            checkpointer.restore(f"run-{run}")
    watch.close(60)
    with TraceReader(directory / FILENAME) as reader:
        return [span for trace in reader.newest(RUNS) for span in reader.spans(trace.trace_id)]


def group_by_kind(spans: list[Span]) -> dict[str, list[list[Span]]]:
    """Return the operations, each with its phases, by name and outcome."""
    children: dict[str, list[Span]] = {}
    for span in spans:
        children.setdefault(span.parent_span_id, []).append(span)
    groups: dict[str, list[list[Span]]] = {}
    for span in spans:
        if names.OPERATION in span.attributes:
            kind = f"{span.attributes[names.OPERATION]}, {span.attributes[names.OUTCOME]}"
            groups.setdefault(kind, []).append([span, *children.get(span.span_id, [])])
    return groups


def encode_batches(spans: list[Span]) -> list[bytes]:
    return [encode(spans[first : first + BATCH], __version__) for first in range(0, len(spans), BATCH)]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        spans = record_runs(Path(directory))
        for kind, operations in group_by_kind(spans).items():
            requests = encode_batches([span for operation in operations for span in operation])
            plain = sum(map(len, requests)) / len(operations)
            packed = sum(len(gzip.compress(request, 6)) for request in requests) / len(operations)
            print(f"{kind:15} {len(operations[0])} spans   {plain:7,.0f} B as OTLP   {packed:6,.0f} B with gzip")
        count = sum(map(len, group_by_kind(spans).values()))
        store = sum(path.stat().st_size for path in Path(directory).glob(f"{FILENAME}*"))
        print(f"local store     {store / count:7,.0f} B per operation, {store / len(spans):,.0f} B per span")
    with tempfile.TemporaryDirectory() as directory:
        print_metric_sizes(Path(directory))


def print_metric_sizes(directory: Path) -> None:
    """Print the size of the metrics of one task, and of each further task, after every kind of operation."""
    watch = ckpt_observe.observe(exporters="prometheus,local", dir=directory, service="trainer")
    checkpointer = Checkpointer(str(directory / "checkpoints"), compression="gzip")
    counts = []
    for task in ("first", "second"):
        with ckpt_observe.task(task, id="run-1"):
            checkpointer.save(task, {"step": 1}, step=1)
            checkpointer.restore(task)
        watch.flush(10)
        stored, snapshot = gather(directory, __version__)
        series = sum(not line.startswith(b"#") for line in render(snapshot, TEXT).splitlines())
        counts.append((series, len(encode_snapshot(stored, snapshot, {"service.name": "trainer"}, 0))))
    watch.close(10)
    (first, pushed), (second, pushed_twice) = counts
    print(f"metrics         {first:,} series and {pushed:,} B per push with one task")
    print(f"                {second - first:,} series and {pushed_twice - pushed:,} B more per further task")


if __name__ == "__main__":
    main()
