"""How many bytes an operation is on its way: `python -m benchmarks.sizes`. The numbers of docs/scale.md come from here.

The reference core saves a small state with compression, fails once a run, and restores; all of it observed. Counted are the spans as OTLP
(batches of 512, as sent), the same under gzip, the local store, and the series of metrics. Nothing is sent.
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


def observed(directory: Path) -> list[Span]:
    """Runs of a task; the spans that the local store has of them."""
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


def families(spans: list[Span]) -> dict[str, list[list[Span]]]:
    """Operations with their phases, by what they are."""
    below: dict[str, list[Span]] = {}
    for span in spans:
        below.setdefault(span.parent_span_id, []).append(span)
    found: dict[str, list[list[Span]]] = {}
    for span in spans:
        if names.OPERATION in span.attributes:
            kind = f"{span.attributes[names.OPERATION]}, {span.attributes[names.OUTCOME]}"
            found.setdefault(kind, []).append([span, *below.get(span.span_id, [])])
    return found


def as_sent(spans: list[Span]) -> list[bytes]:
    return [encode(spans[first : first + BATCH], __version__) for first in range(0, len(spans), BATCH)]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        spans = observed(Path(directory))
        for kind, found in families(spans).items():
            requests = as_sent([span for family in found for span in family])
            sizes = sum(map(len, requests)) / len(found), sum(len(gzip.compress(each, 6)) for each in requests) / len(found)
            print(f"{kind:15} {len(found[0])} spans   {sizes[0]:7,.0f} B as OTLP   {sizes[1]:6,.0f} B with gzip")
        operations = sum(map(len, families(spans).values()))
        store = sum(each.stat().st_size for each in Path(directory).glob(f"{FILENAME}*"))
        print(f"local store     {store / operations:7,.0f} B an operation, {store / len(spans):,.0f} B a span")
    with tempfile.TemporaryDirectory() as directory:
        metrics(Path(directory))


def metrics(directory: Path) -> None:
    """What one task's metrics are after each kind of operation was seen."""
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
    print(f"metrics         {first:,} series and {pushed:,} B a push with one task")
    print(f"                {second - first:,} series and {pushed_twice - pushed:,} B more for each further task")


if __name__ == "__main__":
    main()
