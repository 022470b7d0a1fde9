"""Savers that the program defines itself, after it is observed: `late_savers.py KIND PATH`. Each stores in SQLite, which is the oracle."""

from __future__ import annotations

import json
import operator
import pickle
import sqlite3
import sys
from contextlib import closing
from typing import Annotated, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


def in_function(connection):
    class LocalSaver(SqliteSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config, checkpoint, metadata, new_versions)

    return LocalSaver(connection)


def any_arguments(connection):
    class AnyArgumentsSaver(SqliteSaver):
        def put(self, *args, **kwargs):
            return super().put(*args, **kwargs)

        def put_writes(self, *args, **kwargs):
            return super().put_writes(*args, **kwargs)

        def get_tuple(self, *args, **kwargs):
            return super().get_tuple(*args, **kwargs)

        def list(self, *args, **kwargs):
            yield from super().list(*args, **kwargs)

        def delete_thread(self, *args, **kwargs):
            return super().delete_thread(*args, **kwargs)

    return AnyArgumentsSaver(connection)


def two_levels(connection):
    class ParentSaver(SqliteSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config=config, checkpoint=checkpoint, metadata=metadata, new_versions=new_versions)

        def get_tuple(self, config):
            return super().get_tuple(config)

    class ChildSaver(ParentSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config, checkpoint, metadata, new_versions)

        def get_tuple(self, config):
            return super().get_tuple(config)

    return ChildSaver(connection)


def delegation(connection):
    class DelegatingSaver(BaseCheckpointSaver):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def put(self, config, checkpoint, metadata, new_versions):
            return self.inner.put(config, checkpoint, metadata, new_versions)

        def put_writes(self, config, writes, task_id, task_path=""):
            return self.inner.put_writes(config, writes, task_id, task_path)

        def get_tuple(self, config):
            return self.inner.get_tuple(config)

        def list(self, config, **kwargs):
            yield from self.inner.list(config, **kwargs)

        def delete_thread(self, thread_id):
            return self.inner.delete_thread(thread_id)

        def get_next_version(self, current, channel):
            return self.inner.get_next_version(current, channel)

    return DelegatingSaver(SqliteSaver(connection))


def returned_generator(connection):
    class ListingSaver(SqliteSaver):
        def list(self, config, **kwargs):
            return super().list(config, **kwargs)

    return ListingSaver(connection)


def duck_typed_serde(connection):
    class PickleSerde:  # no base class: SerializerProtocol is a protocol
        def dumps_typed(self, obj):
            return "pickle", pickle.dumps(obj)

        def loads_typed(self, data):
            return pickle.loads(data[1])

    return SqliteSaver(connection, serde=PickleSerde())


KINDS = {kind.__name__: kind for kind in (in_function, any_arguments, two_levels, delegation, returned_generator, duck_typed_serde)}


class State(TypedDict):
    log: Annotated[list, operator.add]


def main(kind, path):
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = KINDS[kind](connection)
        builder = StateGraph(State)
        for name in ("left", "right"):
            builder.add_node(name, lambda state, name=name: {"log": [name * 100]})
            builder.add_edge(START, name)
            builder.add_edge(name, END)
        app = builder.compile(checkpointer=saver, name="late")
        config = {"configurable": {"thread_id": "late"}}
        app.invoke({"log": []}, config)
        history = len(list(app.get_state_history(config)))
        saver.delete_thread("another")
    print(json.dumps({"history": history, "saver": type(saver).__name__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
