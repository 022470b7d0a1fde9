"""The commands with databases of the installed savers of LangGraph. The table of outcomes is in `tests/cli/format_commands.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))

from format_commands import PASSWORD, Checkpoints, check_commands, run
from test_readers import open_saver
from test_readers import run as run_graph

__all__ = ["run"]

pytestmark = pytest.mark.libraries


def test_every_command(run, database):
    """Every command has the outcome of the table, in SQLite and in PostgreSQL, writes nothing, and prints no password."""
    with open_saver(database) as saver:
        run_graph(saver)
    rows = database.checkpoints()
    format = "langgraph-sqlite" if database.is_sqlite else "langgraph-postgres"
    location = database.path.replace("@", f":{PASSWORD}@")
    check_commands(run, Checkpoints(location, format, "document", "large", is_database=True))
    assert database.checkpoints() == rows
