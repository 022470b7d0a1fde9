"""The entry point: recognizes the format at a location, and reads it."""

from __future__ import annotations

import os
from urllib.parse import unquote

from ckpt_observe.core.plugins import stores
from ckpt_observe.errors import CapacityError, CheckpointError, CompatibilityError, ConfigError
from ckpt_observe.readers import core_store
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents
from ckpt_observe.readers.formats import FORMATS, find_format
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.source import Limits
from ckpt_observe.support.host_exceptions import ignore_errors

_PATH_SCHEMES = ("file", "sqlite")
"""URLs of these name a path, whose content says what it is."""
_POSTGRES_SCHEMES = ("postgres", "postgresql")
"""URLs of these name a database, whose tables say what it is."""
_MAX_INNER_PATHS = 50
"""Paths in a directory of unknown format that are looked at, to say which of them is a checkpoint."""
_MAX_INNER_NAMES = 3


def read(
    location: str | os.PathLike[str],
    *,
    depth: int = 1,
    task: str | None = None,
    checkpoint: str | None = None,
    limits: Limits | None = None,
) -> Contents:
    """Return what is in a checkpoint: a file, a directory, a database, or a store of the core.

    `location` is a path or a URL (`sqlite:///...`, `postgresql://...`, `s3://...`). The content decides about the format, not the name.
    `task` (LangGraph: thread) and `checkpoint` narrow a database or store: an id, a unique start of one, `latest~2`, `step:100` or
    `at:<time>`. Nothing is executed, and nothing is written. Raise a CheckpointError or ConfigError that says what to do.
    """
    if depth < 1:
        raise ConfigError(f"`depth` must be at least 1, not {depth}")
    if checkpoint is not None and task is None:
        raise ConfigError("`checkpoint` needs `task`: ids are unique only within a task")
    request = ReadRequest(depth=depth, task=task, checkpoint=checkpoint, limits=limits or Limits())
    text = os.fspath(location)
    scheme, separator, _ = text.partition("://") if isinstance(location, str) else (text, "", "")
    if not text:
        raise ConfigError("the location must be a path or a URL, not an empty string")
    try:
        if separator and scheme.lower() not in _PATH_SCHEMES:
            return _read_url(scheme.lower(), text, request)
        return _read_path(path_of_url(text) if separator else os.path.abspath(os.path.expanduser(text)), request)
    except MemoryError as error:
        message = "not enough memory to read the checkpoint; free some, or raise the limit of this process"
        raise CapacityError(message, code="memory.exhausted") from error


def path_of_url(url: str) -> str:
    """Return the path that the URL of a file, directory or SQLite database names. ConfigError if it has options that its store lacks."""
    scheme, _, rest = url.partition("://")
    path = os.path.abspath(unquote(rest))
    name, mark, options = rest.partition("?")
    if scheme.lower() == "jsonl":  # the only one of these stores with an option; it checks it itself
        return os.path.abspath(unquote(name))
    if mark and not os.path.exists(path) and os.path.exists(unquote(name)):
        raise ConfigError(f"a {scheme} URL has no options: leave out '?{options}', or write %3F for a question mark in a path")
    return path


def is_core_url(url: str, request: ReadRequest) -> bool:
    """Return whether a URL names a store of the core. A PostgreSQL server is asked, because opening a store would create its tables."""
    if url.partition("://")[0].lower() not in _POSTGRES_SCHEMES:
        return True
    from ckpt_observe.readers import langgraph_postgres  # noqa: PLC0415 - an extra

    return langgraph_postgres.is_core_database(url, request)


def _read_url(scheme: str, url: str, request: ReadRequest) -> Contents:
    stores.factory(scheme)  # ConfigError if there is no such scheme
    if is_core_url(url, request):
        return core_store.read_store(url, request)
    from ckpt_observe.readers import langgraph_postgres  # noqa: PLC0415 - an extra

    return langgraph_postgres.read_langgraph_postgres(url, request)


def _read_path(path: str, request: ReadRequest) -> Contents:
    with Candidate(path, request) as candidate:
        format = find_format(candidate)
        if format is None:
            names = ", ".join(format.name for format in FORMATS)
            text = f"the format of {path} is not known; known are {names}. Name the checkpoint itself: its file, directory or database"
            if candidate.is_empty:
                text = f"{path} is empty: nothing was saved to it yet. Check the path, and whether the program saves to another one"
            elif inner := ", ".join(_checkpoints_in(candidate)):
                text = f"{path} is not a checkpoint, but a directory with checkpoints. Name one of them, such as: {inner}"
            raise CompatibilityError(text, code="compatibility.unknown_format")
        if request.task is not None and not format.has_tasks:
            text = f"{path} is a single checkpoint ({format.name}), so it has neither tasks nor a history. Leave out the task: "
            raise ConfigError(f"{text}`ckpt-observe show FILE` shows it, and `ckpt-observe diff FILE FILE` compares two")
        return format.read(candidate)


def _checkpoints_in(directory: Candidate) -> list[str]:
    """Return some checkpoints in a directory: people name that of a run, whose checkpoints are in it."""
    paths: list[str] = []
    for name in sorted(directory.names)[:_MAX_INNER_PATHS]:
        path = os.path.join(directory.path, name)
        with ignore_errors(CheckpointError), Candidate(path, directory.request) as candidate:
            if find_format(candidate) is not None:
                paths.append(path)
    return paths[:_MAX_INNER_NAMES]
