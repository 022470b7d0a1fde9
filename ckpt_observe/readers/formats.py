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
from ckpt_observe.readers.streams import file_stream, is_compressed

LEGACY_TORCH_START: Final = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickle of the magic number with which files of torch before 1.6 start."""
_PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".p", ".joblib")


def is_pickle(candidate: Candidate) -> bool:
    """Return whether a file is a pickle. Protocols 0 and 1 have no magic bytes, so the name must say it, too."""
    if is_compressed(candidate.start):
        return file_stream(candidate.source).read(1) == b"\x80"
    first, protocol = candidate.start[:1], candidate.start[1:2]
    return (first == b"\x80" and b"\x02" <= protocol <= b"\x05") or (bool(first) and candidate.path.endswith(_PICKLE_SUFFIXES))


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
        "torch",
        "`.pt`, `.pth`, `.bin` or `.ckpt` file of `torch.save`",
        "zip file with `data.pkl`",
        "dtype, shape, storage, checksum; what loading would import",
        lambda candidate: any(name.rpartition("/")[2] == "data.pkl" for name in candidate.members),
        "torch_archive:read_torch",
    ),
    Format(
        "torch-legacy",
        "file of `torch.save` before torch 1.6",
        "magic number",
        "dtype, shape; what loading would import",
        lambda candidate: candidate.start.startswith(LEGACY_TORCH_START),
        "torch_archive:read_legacy_torch",
    ),
    Format(
        "pickle",
        "`.pkl`, `.pickle` or `.joblib` file (format `joblib` if joblib wrote it)",
        "opcode of a pickle, also inside gzip, zlib, bz2, xz, lzma or lz4",
        "dtype and shape of arrays; what loading would import",
        is_pickle,
        "pickle_contents:read_pickle",
    ),
    Format(
        "keras",
        "`.keras` file",
        "zip file with `config.json` and `metadata.json`",
        "members, class of the model, version; of the weights (HDF5, from depth 2 on) names, dtype and shape",
        lambda candidate: candidate.members >= {"config.json", "metadata.json"},
        "keras_archive:read_keras",
    ),
    Format(
        "dcp",
        "directory of torch.distributed.checkpoint",
        "`.metadata` and `*.distcp` files",
        "dtype, shape, chunks, bytes per file; what loading would import",
        lambda candidate: ".metadata" in candidate.names and any(name.endswith(".distcp") for name in candidate.names),
        "dcp_directory:read_dcp",
    ),
    Format(
        "orbax",
        "directory of Orbax",
        "`_METADATA` or `_CHECKPOINT_METADATA`",
        "shape, bytes per file, metadata; bytes per array unless it uses OCDBT",
        lambda candidate: bool(candidate.names & {"_METADATA", "_CHECKPOINT_METADATA"}),
        "orbax_directory:read_orbax",
    ),
    Format(
        "file",
        "directory of a file store of the core",
        "subdirectories with `.ckpt` files that start, or are named, like those of the core",
        "bytes per key, task, step and checkpoint; values stored again unchanged; what pruning would free",
        lambda candidate: candidate.has_task_files(".ckpt"),
        "core_store:read_file_store",
        has_tasks=True,
    ),
    Format(
        "jsonl",
        "directory of a JSON Lines store of the core",
        "subdirectories with `.jsonl` or `.jsonl.gz` files that start, or are named, like those of the core",
        "as `file`",
        lambda candidate: candidate.has_task_files(".jsonl", ".jsonl.gz"),
        "core_store:read_jsonl_store",
        has_tasks=True,
    ),
    Format(
        "git",
        "directory of a git store of the core",
        "bare repositories `*.git` with references in `refs/checkpoints`",
        "as `file`",
        lambda candidate: candidate.has_task_repositories(),
        "core_store:read_git_store",
        has_tasks=True,
    ),
)
"""The first row that matches counts."""


def find_format(candidate: Candidate) -> Format | None:
    """Return the format of a candidate, or None if no row matches."""
    return next((format for format in FORMATS if format.matches(candidate)), None)


DATABASES: Final = (
    ("langgraph-postgres", "`postgresql://` URL of LangGraph", "tables `checkpoints` and `checkpoint_blobs`", "as `langgraph-sqlite`"),
    ("postgresql", "`postgresql://` URL of the core", "table `ckpt_checkpoints`", "as `file`"),
    ("redis, s3, gs, az", "URL of another store of the core", "its scheme", "as `file`"),
)
"""What URLs can name: name, location, signs, what is shown."""
