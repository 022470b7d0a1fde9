"""Draws a graph from a seed and runs it until it ends, resuming after each interrupt: `drawn_graph.py SEED SAVER_URL`.

Each graph has an interrupt, a node that fails at first, and a subgraph. Prints the thread, how many runs it took, how many attempts of nodes
failed, how often SQLite committed, and the final state.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
import random
import sys
from typing import Annotated, TypedDict

import savers
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

RETRY = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3, retry_on=ConnectionError)


class State(TypedDict):
    log: Annotated[list, operator.add]
    text: Annotated[str, lambda old, new: max(old, new, key=len)]


class Drawing:
    """The choices of one seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.failed = []
        self.features = set()

    def graph(self, depth=2, *, may_interrupt=True):
        """Layers of nodes: those of a layer run in parallel, and each layer waits for the layer before."""
        builder = StateGraph(State)
        above = [START]
        for layer in range(self.random.randint(2, 4) if depth == 2 else self.random.randint(1, 2)):
            width = self.random.randint(1, 4)
            # at most one interrupt per layer, so that a resume needs no id of an interrupt
            interrupting = self.random.randrange(width) if may_interrupt and self.random.random() < 0.4 else None
            nodes = [f"node_{depth}_{layer}_{number}" for number in range(width)]
            for number, name in enumerate(nodes):
                self._add_node(builder, name, depth, asks=number == interrupting)
            for name in nodes:
                builder.add_edge(above if above != [START] else START, name)
            above = nodes
        builder.add_edge(above, END)
        return builder

    def _add_node(self, builder, name, depth, *, asks):
        is_subgraph = depth > 0 and self.random.random() < 0.3
        failures = self.random.choice((0, 0, 1, 2))
        size = self.random.choice((1, 100, 5000))
        if is_subgraph:
            self.features.add("subgraph")
            builder.add_node(name, self.graph(depth - 1, may_interrupt=asks).compile())
            return

        self.features |= ({"interrupt"} if asks else set()) | ({"retry"} if failures else set())
        attempts = itertools.count(1)

        def node(state):
            if next(attempts) <= failures:
                self.failed.append(name)
                raise ConnectionError(name)
            answer = interrupt(f"{name}?") if asks else "no question"
            return {"log": [f"{name}: {answer}"], "text": "x" * (size + len(state["log"]))}

        builder.add_node(name, node, retry_policy=RETRY)


def draw(seed):
    """The first drawing from this seed on that has everything, and its graph."""
    drawings = ((drawing, drawing.graph()) for drawing in map(Drawing, itertools.count(seed)))
    return next(drawn for drawn in drawings if drawn[0].features == {"interrupt", "retry", "subgraph"})


def run(app, config):
    result, runs = app.invoke({"log": [], "text": ""}, config), 1
    while result.pop("__interrupt__", None):
        result, runs = app.invoke(Command(resume=f"answer {runs}"), config), runs + 1
    return result, runs


async def run_async(app, config, **options):
    result, runs = await app.ainvoke({"log": [], "text": ""}, config, **options), 1
    while result.pop("__interrupt__", None):
        result, runs = await app.ainvoke(Command(resume=f"answer {runs}"), config, **options), runs + 1
    return result, runs


async def open_and_run(graph, url, config):
    async with savers.open_async_saver(url) as saver:
        return await run_async(graph.compile(checkpointer=saver, name="drawn"), config)


def main(seed, url):
    config = {"configurable": {"thread_id": f"thread-{seed}"}}
    drawing, graph = draw(seed)
    if url.partition(":")[0] in savers.ASYNC:
        result, runs = asyncio.run(open_and_run(graph, url, config))
    else:
        with savers.open_saver(url) as saver:
            result, runs = run(graph.compile(checkpointer=saver, name="drawn"), config)
    commits = savers.CountingConnection.commits
    print(json.dumps({"thread": f"thread-{seed}", "runs": runs, "failures": len(drawing.failed), "commits": commits, "result": result}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
