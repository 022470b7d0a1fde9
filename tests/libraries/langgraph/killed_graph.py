"""A graph whose process is killed in the commit of its K-th checkpoint, or that resumes: `killed_graph.py SAVER_SCHEME PATH K`.

With K = 0 it resumes to the end and prints the state.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import signal
import sqlite3
import sys
from contextlib import closing
from typing import Annotated, TypedDict

import aiosqlite
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

SCHEME, PATH, KILL_AT = sys.argv[1], sys.argv[2], int(sys.argv[3])
CONFIG = {"configurable": {"thread_id": "victim"}}
LAYERS = 5


class State(TypedDict):
    log: Annotated[list, operator.add]


class KillingConnection(sqlite3.Connection):
    """Kills the process instead of the K-th commit that would make a checkpoint visible. Commits of pending writes do not count."""

    checkpoints = 0
    wrote_checkpoint = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.set_trace_callback(self.note_statement)

    def note_statement(self, statement):
        self.wrote_checkpoint |= statement.startswith("INSERT") and "INTO checkpoints" in statement

    def commit(self):
        if self.wrote_checkpoint:
            self.wrote_checkpoint = False
            self.checkpoints += 1
            if self.checkpoints == KILL_AT:
                os.kill(os.getpid(), signal.SIGKILL)
        super().commit()


def build(saver):
    builder = StateGraph(State)
    above = [START]
    for layer in range(LAYERS):
        nodes = [f"node_{layer}_{number}" for number in range(1 + layer % 3)]
        for node in nodes:
            builder.add_node(node, lambda state, node=node: {"log": [node]})
            builder.add_edge(above if above != [START] else START, node)
        above = nodes
    builder.add_edge(above, END)
    return builder.compile(checkpointer=saver, name="victim")


def first_input():
    return {"log": []} if KILL_AT else None


async def run_async():
    async with aiosqlite.connect(PATH, factory=KillingConnection) as connection:
        return await build(AsyncSqliteSaver(connection)).ainvoke(first_input(), CONFIG)


def run():
    with closing(sqlite3.connect(PATH, check_same_thread=False, factory=KillingConnection)) as connection:
        return build(SqliteSaver(connection)).invoke(first_input(), CONFIG)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_async()) if SCHEME == "aiosqlite" else run()))
