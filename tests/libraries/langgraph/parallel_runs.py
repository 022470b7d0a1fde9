"""Runs a graph with three parallel nodes many times, four runs at once: `parallel_runs.py RUNS`.

The nodes of a run wait for each other, so that LangGraph stores their results from worker threads at the same time.
"""

from __future__ import annotations

import json
import operator
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

NODES = ("first", "second", "third")


class State(TypedDict):
    log: Annotated[list, operator.add]


def run(saver, number):
    barrier = threading.Barrier(len(NODES))

    def node(name):
        def call(state):
            barrier.wait(60)
            return {"log": [name]}

        return call

    builder = StateGraph(State)
    for name in NODES:
        builder.add_node(name, node(name))
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    builder.compile(checkpointer=saver, name="parallel").invoke({"log": []}, {"configurable": {"thread_id": f"thread-{number}"}})


def main(runs):
    saver = InMemorySaver()
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda number: run(saver, number), range(runs)))
    print(json.dumps({"writes": sum(len({task for task, _ in writes}) for writes in saver.writes.values())}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
