"""Compares the trace store with that of earlier versions, which had a row for every span: `python -m benchmarks.traces [SPANS]`.

Both stores get the same operations (saves with four phases, in runs of 50; one in a hundred fails). The output is the CPU time of writing
an operation, the size of the files, the time of each query, and then the time of moving everything from the former store to a third one,
with a check that nothing is lost. A million spans take some minutes.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.former_traces import FormerTraces
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.span import Span, SpanEvent
from ckpt_observe.tracestore import FILENAME, OperationFilter, TraceLimits, TraceReader, TraceWriter
from ckpt_observe.tracestore.former_store import FORMER_FILENAME, FormerStore

SPANS, RUN, BATCH, SECOND, ROUNDS = 200_000, 50, 200, 1_000_000_000, 20
END = time.time_ns()
PHASES = {"serialize": (None, 2048), "compress": (2048, 800), "write": (800, None), "validate": (800, None)}


def make_operations(count: int) -> Iterator[list[Span]]:
    """Yield operations, each as its phases and itself. A run of RUN saves is a trace."""
    numbers, start = random.Random(1), END - count * SECOND
    resource = {"service.name": "trainer", "service.instance.id": "5f3e", "process.pid": 7, "host.name": "a"}
    for number in range(count):
        run, moment, failed = number // RUN, start + number * SECOND, number % 100 == 7
        trace_id, span_id = f"{random.Random(run).getrandbits(128):032x}", f"{numbers.getrandbits(64):016x}"
        spans = []
        for phase, (name, (bytes_in, bytes_out)) in enumerate(PHASES.items(), 1):
            sizes = {names.PHASE_BYTES_IN: bytes_in, names.PHASE_BYTES_OUT: bytes_out}
            attributes = {names.PHASE: name, names.OUTCOME: "ok", **{key: size for key, size in sizes.items() if size}}
            times = moment + phase * 1_000_000, moment + phase * 1_000_000 + 900_000
            spans.append(
                Span(
                    trace_id,
                    events.phase_span_id(span_id, phase),
                    span_id,
                    f"checkpoint.{name}",
                    *times,
                    "ok",
                    attributes,
                    resource=resource,
                )
            )
        attributes = {
            names.OPERATION: "save", names.OUTCOME: "error" if failed else "ok", names.SYSTEM: "reference", names.STORE: "file",
            names.LOCATION: "/var/checkpoints", names.FORMAT: "msgpack", names.TASK_NAME: f"task-{run % 20}", names.TASK_ID: f"run-{run}",
            names.STEP: number % RUN, names.ID: f"c-{number}", names.SIZE_SERIALIZED: 2048, names.SIZE_STORED: 800, names.RATIO: 2.56,
            **({names.ERROR_CLASS: "capacity", names.ERROR_CODE: "capacity.disk_full"} if failed else {}),
        }  # fmt: skip
        event = (SpanEvent("exception", moment, {"exception.type": "OSError", "exception.message": "no space"}),) if failed else ()
        status = "error" if failed else "ok"
        spans.append(
            Span(trace_id, span_id, "", "checkpoint.save", moment, moment + 9_000_000, status, attributes, event, resource=resource)  # type: ignore[arg-type]
        )
        yield spans


def write_all(write: Callable[[list[Span]], None], count: int) -> float:
    """Write operations in batches. Return the CPU time for each, in µs."""
    operations, cpu = make_operations(count), 0.0
    while batch := [span for spans in itertools.islice(operations, BATCH) for span in spans]:
        start = time.thread_time()
        write(batch)
        cpu += time.thread_time() - start
    return cpu / count * 1e6


def best_times(*queries: Callable[[], object]) -> list[float]:
    """Return the shortest time of each query, in ms. They take turns, so that a busy machine disturbs all of them."""
    best = [math.inf] * len(queries)
    for _ in range(ROUNDS):
        for number, query in enumerate(queries):
            for _ in range(10):
                start = time.perf_counter()
                query()
                best[number] = min(best[number], (time.perf_counter() - start) * 1000)
    return best


def compare_queries(former: FormerTraces, reader: TraceReader) -> None:
    trace_id = reader.newest(200)[-1].trace_id
    queries: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "newest 20 traces": (former.newest, reader.newest),
        "spans of a trace": (lambda: former.spans(trace_id), lambda: reader.spans(trace_id)),
    }
    for column, value in (
        ("operation", "save"), ("outcome", "ok"), ("outcome", "error"), ("error_class", "capacity"), ("task_name", "task-3"),
        ("task_id", "run-1"), ("task_name", "nobody"), ("outcome", "interrupted"), ("operation", "restore"),
    ):  # fmt: skip
        matching = OperationFilter(**{column: value})
        queries[f"20 traces with {column} {value}"] = (
            lambda column=column, value=value: former.newest(**{column: value}),  # type: ignore[misc]
            lambda matching=matching: reader.newest(matching=matching),  # type: ignore[misc]
        )
    for label, (old, new) in queries.items():
        before, now = best_times(old, new)
        print(f"{label:40} {before:8.3f} ms   {now:8.3f} ms   {now / before:5.2f} x")


def main() -> None:
    count = int(sys.argv[1] if sys.argv[1:] else SPANS) // (1 + len(PHASES))
    limits = TraceLimits(0, 0)
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        former, writer = FormerTraces(state / FORMER_FILENAME), TraceWriter(state / "present.db", limits)
        before, now = write_all(former.write, count), write_all(writer.write, count)
        print(f"{'CPU time of writing an operation':40} {before:8.1f} µs   {now:8.1f} µs   {now / before:5.2f} x")
        sizes = [(state / name).stat().st_size / count for name in (FORMER_FILENAME, "present.db")]
        print(f"{'bytes of an operation on disk':40} {sizes[0]:8.0f} B    {sizes[1]:8.0f} B    {sizes[1] / sizes[0]:5.2f} x")
        with TraceReader(state / "present.db") as reader:
            compare_queries(former, reader)
        former.close()
        target = TraceWriter(state / FILENAME, limits)
        start, cpu = time.perf_counter(), time.process_time()
        moved = FormerStore(state).move(target, math.inf)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        target.close()
        with TraceReader(state / FILENAME) as reader, TraceReader(state / "present.db") as expected:
            lost = sum(moved_group != group for moved_group, group in zip(reader.operations(), expected.operations(), strict=True))
        print(f"moved {moved} spans in {seconds:.1f} s ({cpu:.1f} s CPU); operations that differ: {lost}")


if __name__ == "__main__":
    main()
