"""Saves values that do not come back as they were, and loads them: `altered_values.py save|load SAVER_URL`.

`Report` has a field that its constructor does not take. `Draft` exists only in the process that saves. Prints the types of what was loaded.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TypedDict

import savers
from langgraph.graph import END, START, StateGraph

CONFIG = {"configurable": {"thread_id": "altered"}}


@dataclasses.dataclass
class Report:
    text: str
    words: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Draft:
    text: str


@dataclasses.dataclass
class Plain:
    text: str


if sys.argv[1] == "load":
    saved_draft = Draft
    del Draft


class State(TypedDict):
    report: object
    nested: list
    draft: object
    plain: object
    number: int


def build(saver):
    builder = StateGraph(State)
    builder.add_node(
        "node",
        lambda state: {"report": Report("a"), "nested": [{"deep": Report("b")}], "draft": Draft("c"), "plain": Plain("d"), "number": 1},
    )
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)


def main(step, url):
    with savers.open_saver(url) as saver:
        app = build(saver)
        if step == "save":
            app.invoke({"number": 0}, CONFIG)
            print("{}")
            return
        values = app.get_state(CONFIG).values
        nested = values["nested"][0]["deep"] if values.get("nested") else None
    types = {**values, "nested": nested}
    print(json.dumps({name: type(value).__name__ for name, value in types.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
