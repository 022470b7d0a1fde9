"""Runs a graph in which one channel is large: `channels.py SAVER_URL`. Each of its nodes adds to it."""

from __future__ import annotations

import asyncio
import operator
import sys
from typing import Annotated, TypedDict

import savers
from langgraph.graph import END, START, StateGraph

CONFIG = {"configurable": {"thread_id": "channels"}}


class State(TypedDict):
    transcript: Annotated[list, operator.add]
    summary: str
    scores: list


def build(saver):
    builder = StateGraph(State)
    above = START
    for number in range(4):
        name = f"node_{number}"
        builder.add_node(name, lambda state: {"transcript": ["x" * 10_000], "summary": "y" * 2_000, "scores": [1, 2, 3]})
        builder.add_edge(above, name)
        above = name
    builder.add_edge(above, END)
    return builder.compile(checkpointer=saver, name="channels")


async def run_async(url):
    async with savers.open_async_saver(url) as saver:
        await build(saver).ainvoke({"transcript": []}, CONFIG)


def run(url):
    with savers.open_saver(url) as saver:
        build(saver).invoke({"transcript": []}, CONFIG)


if __name__ == "__main__":
    asyncio.run(run_async(sys.argv[1])) if sys.argv[1].partition(":")[0] in savers.ASYNC else run(sys.argv[1])
    print("{}")
