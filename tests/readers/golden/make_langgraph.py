"""Creates langgraph.db with the installed LangGraph: two threads, of which one has a large channel that does not change.

Run it in an environment with the packages of .ci/libraries.d/langgraph.txt: python make_langgraph.py DIRECTORY
"""

from __future__ import annotations

import operator
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]
    document: str
    count: int


def answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage("an answer", id="a")], "count": state.get("count", 0) + 1}


def write(state: State) -> dict[str, Any]:
    return {"messages": [HumanMessage("a question", id="q")]}


def graph(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_node("write", write)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "write")
    builder.add_edge("write", END)
    return builder.compile(checkpointer=saver)


def run(saver: Any) -> None:
    for thread, document in (("small", ""), ("large", "d" * 1500)):
        state = {"messages": [HumanMessage("hello", id="h")], "document": document}
        graph(saver).invoke(state, {"configurable": {"thread_id": thread}})


def main(directory: Path) -> None:
    path = directory / "langgraph.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        run(SqliteSaver(connection))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
