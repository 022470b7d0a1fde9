"""The commands with files that the real libraries wrote (`tests/readers/golden`), format by format, from one table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from format_commands import COMMANDS, GOLDEN, IDS, Checkpoints, check_command, run

from ckpt_observe.cli.main import GROUPS
from ckpt_observe.readers.formats import FORMATS

__all__ = ["run"]

FILES = {
    "torch.pt": ("torch", "model"),
    "legacy.pt": ("torch-legacy", "model"),
    "model.safetensors": ("safetensors", "layer.weight"),
    "dcp": ("dcp", "model.layer.weight"),
    "orbax": ("orbax", "params/b"),
    "model.keras": ("keras", "model.weights.h5"),
    "array.npy": ("npy", "array"),
    "arrays.npz": ("npz", "a"),
    "protocol2.pkl": ("pickle", "a"),
    "zlib.joblib": ("joblib", "a"),
    "langgraph.db": ("langgraph-sqlite", "document"),
}
"""Format and largest key of each file."""
OF_THE_CORE = {"file", "jsonl", "sqlite", "git"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", COMMANDS, ids=IDS)
def test_command_with_each_format(run, command, name):
    """A command shows what it can, or refuses with its exit code and names what to use instead."""
    format, key = FILES[name]
    is_database = format == "langgraph-sqlite"
    check_command(run, command, Checkpoints(str(GOLDEN / name), format, key, "large" if is_database else "thread", is_database))


def test_table_is_complete():
    """The table has every command that looks into checkpoints, and a file of every format. `advise` reads traces only."""
    commands = {*GROUPS["Look into checkpoints"], *GROUPS["Take care of checkpoints"]} - {"advise"}
    assert {command.arguments.split()[0] for command in COMMANDS} == commands
    assert {format for format, _ in FILES.values()} - {"joblib"} == {format.name for format in FORMATS} - OF_THE_CORE
