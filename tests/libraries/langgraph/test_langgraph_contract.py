"""The instrumentor of LangGraph passes the contract of all instrumentors, with the savers of the installed packages.

A cipher, or a serializer of a module that is imported later, is observed when a saver uses it first: see `test_arguments.py`.
"""

from __future__ import annotations

import pytest

from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries

USE = """
import asyncio, operator
from typing import Annotated, TypedDict
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

State = TypedDict("State", {"log": Annotated[list, operator.add]})

def build(saver):
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"log": ["node"]})
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)

config = {"configurable": {"thread_id": "thread-1"}}

async def use_async():
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        assert await build(saver).ainvoke({"log": []}, config) == {"log": ["node"]}
        assert len([item async for item in saver.alist(config)]) == 3
        await saver.adelete_thread("thread-1")

with SqliteSaver.from_conn_string(":memory:") as sqlite:
    for saver in (InMemorySaver(), sqlite):
        assert build(saver).invoke({"log": []}, config) == {"log": ["node"]}
        assert len(list(saver.list(config))) == 3
        saver.delete_thread("thread-1")
        assert saver.get_tuple(config) is None
asyncio.run(use_async())
"""


class TestLangGraph(InstrumentorContract):
    instrumentor = "without_ciphers:WithoutCiphers"
    use = USE
    members = (
        "langgraph.checkpoint.memory",
        "langgraph.checkpoint.sqlite.aio",
        "langgraph.checkpoint.postgres.aio",
        "langgraph.checkpoint.serde.jsonplus",
    )
