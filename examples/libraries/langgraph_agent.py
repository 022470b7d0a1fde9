"""A LangGraph agent that searches, asks a human, and writes a report. docs/langgraph.md shows its traces.

It does not know that it is observed: run it with `ckpt-observe run -- python agent.py COMMAND`.

ask      runs until it asks the human
answer   goes on with the answer, in another process
crash    dies by kill -9 while a commit is in progress
lock     fails because another connection has locked the database
broken   fails because a tool returned something that cannot be saved
"""

import operator
import os
import signal
import sqlite3
import sys
import threading
from typing import Annotated, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

COMMAND = sys.argv[1]


class State(TypedDict, total=False):
    question: str
    documents: Annotated[list, operator.add]
    report: str


def search(_state: State) -> State:
    documents = [{"url": f"https://example.org/{number}", "text": "Otters hold hands. " * 500} for number in range(3)]
    if COMMAND == "broken":
        documents[2]["cache"] = threading.Lock()
    return {"documents": documents}


def approve(_state: State) -> State:
    interrupt("Write the report?")
    return {}


def write(state: State) -> State:
    return {"report": f"{len(state['documents'])} documents on {state['question']}"}


class CrashingConnection(sqlite3.Connection):
    """Dies in its third commit, as if the kernel had killed the process because memory was short."""

    commits = 0

    def commit(self) -> None:
        self.commits += 1
        if self.commits == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit()


factory = CrashingConnection if COMMAND == "crash" else sqlite3.Connection
connection = sqlite3.connect("agent.db", timeout=0.5, check_same_thread=False, factory=factory)
saver = SqliteSaver(connection)
saver.setup()
graph = StateGraph(State).add_sequence([search, approve, write]).add_edge(START, "search").add_edge("write", END)
agent = graph.compile(saver, name="reporter")

other_connection = sqlite3.connect("agent.db")
if COMMAND == "lock":
    other_connection.execute("BEGIN IMMEDIATE")

thread = "thread-1" if COMMAND in ("ask", "answer") else f"thread-{COMMAND}"
result = agent.invoke(
    Command(resume=True) if COMMAND == "answer" else {"question": "otters"},
    {"configurable": {"thread_id": thread}},
)
print(result["__interrupt__"][0].value if "__interrupt__" in result else result["report"])
