"""Measures what observation adds to the operations of real libraries: `python -m benchmarks.libraries [NAME...]`.

Each operation runs alternately in one process: (a) bare, (b) observed by ckpt_observe, (c) within one OpenTelemetry span with the same
attributes, written by hand. The sizes in (c) are constants: it does not have to measure them. (b) records more: phases, and protection
against the death of the process. Both have an exporter that discards spans. The output is what (b) and (c) add to (a). A library that is
not installed is skipped.
"""

from __future__ import annotations

import gc
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import ckpt_observe
from benchmarks.saturation import DiscardingExporter
from ckpt_observe import exporter_selection

TURNS, CALLS, WARM_UP = 60, 100, 30
BUDGET = 1.0
"""What observation may add, as a multiple of what the span by hand adds."""


@contextmanager
def langgraph_put(kind: str) -> Iterator[Callable[[Any], Callable[[], Any]]]:
    """Yield a function that returns one `put` of a small agent state, bare or within a span of the tracer that it is given."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.memory import InMemorySaver

    with tempfile.TemporaryDirectory() as directory:
        if kind == "sqlite":
            from langgraph.checkpoint.sqlite import SqliteSaver

            connection = sqlite3.connect(f"{directory}/checkpoints.db", check_same_thread=False)
            connection.execute("PRAGMA synchronous = OFF")  # the disk of this machine is not what is measured
            saver: Any = SqliteSaver(connection)
            saver.setup()
        else:
            saver = InMemorySaver()
        config = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": "", "checkpoint_id": str(uuid.uuid4())}}
        values = {"messages": ["hello " * 20] * 5, "plan": {"steps": list(range(20))}}
        versions = dict.fromkeys(values, 1)
        sizes: dict[str, Any] = {"checkpoint.outcome": "ok", "checkpoint.format": "msgpack", "checkpoint.size.serialized": 812}
        if kind == "memory":  # else they are measured once in 20 saves
            sizes |= {"checkpoint.state.key_names": ("messages", "plan"), "checkpoint.state.key_sizes": (612, 28)}

        def create(tracer: Any = None) -> Callable[[], Any]:
            def put() -> Any:
                checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
                metadata = {"step": 3, "source": "loop", "parents": {}}
                if tracer is None:
                    return saver.put(config, checkpoint, metadata, versions)
                attributes = {
                    "checkpoint.operation": "save",
                    "checkpoint.system": "langgraph",
                    "checkpoint.store": kind,
                    "checkpoint.saver": type(saver).__name__,
                    "checkpoint.task.id": config["configurable"]["thread_id"],
                    "checkpoint.id": checkpoint["id"],
                    "checkpoint.parent_id": config["configurable"]["checkpoint_id"],
                    "checkpoint.step": metadata["step"],
                    "checkpoint.reason": metadata["source"],
                }
                with tracer.start_as_current_span("checkpoint.save", attributes=attributes) as span:
                    result = saver.put(config, checkpoint, metadata, versions)
                    span.set_attributes(sizes)
                    return result

            return put

        yield create


OPERATIONS: dict[str, Callable[[], Any]] = {
    "langgraph-memory": lambda: langgraph_put("memory"),
    "langgraph-sqlite": lambda: langgraph_put("sqlite"),
}


def measure_calls(call: Callable[[], Any]) -> list[float]:
    """Return the microseconds of each call, after some that are not measured: patching a class drops what the interpreter cached of it."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def measure(create: Callable[..., Callable[[], Any]]) -> dict[str, list[float]]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(DiscardingExporter(), max_queue_size=2**16))
    bare, by_hand = create(), create(provider.get_tracer("by hand"))
    times: dict[str, list[float]] = {"bare": [], "by hand": [], "ours": []}
    instrumentors = list(ckpt_observe.api._watch._instrumentors)  # type: ignore[union-attr]
    gc.collect()
    for _ in range(TURNS):
        for instrumentor in instrumentors:
            instrumentor.uninstrument()
        times["bare"] += measure_calls(bare)
        times["by hand"] += measure_calls(by_hand)
        for instrumentor in instrumentors:
            instrumentor.instrument()
        times["ours"] += measure_calls(bare)
    provider.shutdown()
    return times


def main(selection: list[str]) -> int:
    exporter_selection.EXPORTERS["local"] = lambda *_: DiscardingExporter()  # type: ignore[assignment]
    exceeded = []
    with tempfile.TemporaryDirectory() as state:
        watch = ckpt_observe.observe(exporters="local", dir=state)
        for name in selection or OPERATIONS:
            try:
                with OPERATIONS[name]() as create:
                    times = measure(create)
            except ImportError as error:
                print(f"{name}: skipped, {error}")
                continue
            medians = {kind: statistics.median(values) for kind, values in times.items()}
            by_hand, ours = medians["by hand"] - medians["bare"], medians["ours"] - medians["bare"]
            print(
                f"{name}: bare {medians['bare']:.1f} µs, a span by hand adds {by_hand:.1f}, ours adds {ours:.1f} = 1 : {by_hand / ours:.2f}"
            )
            if ours > BUDGET * by_hand:
                exceeded.append(name)
        watch.close(10)
    print(f"EXCEEDED: {', '.join(exceeded)}" if exceeded else f"within the budget of 1 : {1 / BUDGET:g}")
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
