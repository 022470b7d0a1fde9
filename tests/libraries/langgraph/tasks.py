"""Runs of a graph as tasks: `tasks.py KIND`. KIND is the name of a function without `run_`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict):
    answer: str


def ask(state):
    return {"answer": interrupt("may I?")}


def fail(state):
    raise LookupError("the node's own failure")


def answer(state):
    return {"answer": "yes"}


def build(node):
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=InMemorySaver(), name="assistant")


def new_config():
    return {"configurable": {"thread_id": f"thread-{uuid.uuid4()}"}, "run_id": uuid.uuid4()}


def run_interrupt():
    app, config = build(ask), new_config()
    app.invoke({"answer": ""}, config)
    second = {**config, "run_id": uuid.uuid4()}
    result = app.invoke(Command(resume="yes"), second)
    return {"thread": config["configurable"]["thread_id"], "runs": [config["run_id"], second["run_id"]], "answer": result["answer"]}


def run_failing_node():
    config = new_config()
    try:
        build(fail).invoke({"answer": ""}, config)
    except LookupError as error:
        return {"thread": config["configurable"]["thread_id"], "runs": [config["run_id"]], "error": str(error)}
    raise AssertionError


def run_within_span(*, is_async=False):
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    trace.set_tracer_provider(TracerProvider())
    with trace.get_tracer("program").start_as_current_span("request") as span:
        return {**run_once(is_async=is_async), **ids_of(span)}


def run_within_span_async():
    return run_within_span(is_async=True)


def run_once(*, is_async=False):
    app, config = build(answer), new_config()
    if is_async:
        asyncio.run(app.ainvoke({"answer": ""}, config))
    else:
        app.invoke({"answer": ""}, config)
    return {"thread": config["configurable"]["thread_id"], "runs": [config["run_id"]]}


def ids_of(span):
    context = span.get_span_context()
    return {"trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}"}


def run_async_stream():
    """Two runs at once in one event loop, of which one is left early."""
    first, second = new_config(), new_config()

    async def stream(config, limit):
        chunks = 0
        async for _ in build(answer).astream({"answer": ""}, config, stream_mode="values"):
            chunks += 1
            if chunks == limit:
                break
        return chunks

    async def both():
        return await asyncio.gather(stream(first, 1), stream(second, 100))

    chunks = asyncio.run(both())
    return {
        "threads": [config["configurable"]["thread_id"] for config in (first, second)],
        "runs": [first["run_id"], second["run_id"]],
        "chunks": chunks,
    }


def run_idle():
    """The numbers of running tasks in the metrics, within a run and between two runs of a thread."""
    import ckpt_observe  # noqa: PLC0415
    from ckpt_observe.metricstore.snapshot import gather  # noqa: PLC0415
    from ckpt_observe.semconv import metrics  # noqa: PLC0415

    def read():
        ckpt_observe.observe().flush()
        _, snapshot = gather(Path(os.environ["CKPT_OBSERVE_DIR"]), "1")
        points = {spec.name: dict(series) for spec, series in snapshot}
        in_runs = [points.get(spec.name, {}).get(("assistant",)) for spec in (metrics.TASKS_IN_FLIGHT, metrics.TASKS_OLDEST_START)]
        return {
            "running": in_runs[0],
            "has_start": in_runs[1] is not None,
            "saved": ("save", "assistant") in points[metrics.LAST_SUCCESS.name],
        }

    def look(state):
        return {"answer": json.dumps(read())}

    app, config = build(look), new_config()
    app.invoke({"answer": ""}, config)
    return [json.loads(app.invoke({"answer": ""}, config)["answer"]), read()]


if __name__ == "__main__":
    print(json.dumps(globals()[f"run_{sys.argv[1]}"](), default=str))
