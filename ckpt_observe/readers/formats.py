"""The formats that can be looked into, as a table. It recognizes a checkpoint by its content, and generates the documentation."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents
from ckpt_observe.readers.langgraph_sqlite import COLUMNS as LANGGRAPH_COLUMNS
from ckpt_observe.readers.numpy_files import MAGIC as NUMPY_MAGIC
from ckpt_observe.readers.safetensors_header import is_safetensors

CORE_FILE_START: Final = b'{"checkpoint":'


class Format(NamedTuple):
    """One format."""

    name: str
    """Value of `Contents.format`. The stores of the core use the name of their store."""
    files: str
    """What people call such a file or directory."""
    signs: str
    """By what it is recognized."""
    shows: str
    """What is shown besides keys, types and bytes."""
    matches: Callable[[Candidate], bool]
    reader: str
    """`module:function`. It takes a Candidate."""
    has_tasks: bool = False
    """Whether it contains several checkpoints, so that `task` and `checkpoint` can select."""

    def read(self, candidate: Candidate) -> Contents:
        """Return what is in the candidate. The module of the reader is imported now."""
        module, _, function = self.reader.partition(":")
        contents: Contents = getattr(import_module(f"ckpt_observe.readers.{module}"), function)(candidate)
        return contents


FORMATS: Final = (
    Format(
        "safetensors",
        "`.safetensors` file",
        "length and opening brace of its JSON header",
        "dtype, shape, metadata",
        lambda candidate: is_safetensors(candidate.start),
        "safetensors_header:read_safetensors",
    ),
    Format(
        "npy",
        "`.npy` file",
        "magic bytes",
        "dtype, shape, order; warns about arrays of Python objects",
        lambda candidate: candidate.start.startswith(NUMPY_MAGIC),
        "numpy_files:read_npy",
    ),
    Format(
        "npz",
        "`.npz` file",
        "zip file whose members are all `.npy`",
        "as `.npy`, for each array, with its checksum",
        lambda candidate: bool(candidate.members) and all(name.endswith(".npy") for name in candidate.members),
        "numpy_files:read_npz",
    ),
    Format(
        "langgraph-sqlite",
        "SQLite database of LangGraph",
        "a table `checkpoints` with LangGraph's columns",
        "bytes per channel, thread, step and checkpoint; values stored again unchanged; what pruning would free",
        lambda candidate: candidate.has_columns("checkpoints", LANGGRAPH_COLUMNS),
        "langgraph_sqlite:read_langgraph_sqlite",
        has_tasks=True,
    ),
    Format(
        "sqlite",
        "SQLite database of the core",
        "a table `checkpoints` with the core's columns",
        "as `file`",
        lambda candidate: candidate.has_columns("checkpoints", frozenset({"task", "id", "header", "payload"})),
        "core_store:read_sqlite_store",
        has_tasks=True,
    ),
    Format(
        "file",
        "directory of a file store of the core",
        "subdirectories with `.ckpt` files",
        "bytes per key, task, step and checkpoint; values stored again unchanged; what pruning would free",
        lambda candidate: candidate.has_task_files(".ckpt"),
        "core_store:read_file_store",
        has_tasks=True,
    ),
    Format(
        "jsonl",
        "directory of a JSON Lines store of the core",
        "subdirectories with `.jsonl` or `.jsonl.gz` files",
        "as `file`",
        lambda candidate: candidate.has_task_files(".jsonl", ".jsonl.gz"),
        "core_store:read_jsonl_store",
        has_tasks=True,
    ),
    Format(
        "git",
        "directory of a git store of the core",
        "bare repositories with names that end in `.git`",
        "as `file`",
        lambda candidate: any(name.endswith(".git") for name in candidate.names - {".git"}),
        "core_store:read_git_store",
        has_tasks=True,
    ),
)
"""The first row that matches counts."""


def find_format(candidate: Candidate) -> Format | None:
    """Return the format of a candidate, or None if no row matches."""
    return next((format for format in FORMATS if format.matches(candidate)), None)
