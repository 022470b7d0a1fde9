"""Runs `ckpt-observe doctor --json` after renaming callables of LangGraph, as a new version of it could."""

from __future__ import annotations

import sys

import langgraph.pregel.main
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from ckpt_observe.cli.main import main

if __name__ == "__main__":
    if "class" in sys.argv:
        langgraph.pregel.main.GraphRunner = langgraph.pregel.main.Pregel
        del langgraph.pregel.main.Pregel
    if "method" in sys.argv:
        for saver in (BaseCheckpointSaver, InMemorySaver):
            saver.append_writes = saver.put_writes
            del saver.put_writes
    main(["doctor", "--json"])
