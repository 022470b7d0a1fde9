"""Opens what a user names as STORE: a store of the core, or a file, directory or database of another library."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Final

from ckpt_observe.core import Checkpointer, CheckpointInfo
from ckpt_observe.core.ciphers import KEY_VARIABLE, AeadCipher
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.plugins import stores
from ckpt_observe.core.retention import Retention
from ckpt_observe.core.stores.urls import path_to_url
from ckpt_observe.endpoints import without_credentials
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.formats import find_format
from ckpt_observe.readers.reading import is_core_url, path_of_url
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.selection import expand_prefix
from ckpt_observe.support.suggestions import suggest

STORE_HELP: Final = (
    "URL of a store (sqlite:///data/a.db, s3://bucket/runs, ...), or path of a store, checkpoint file, directory or database"
)
REF_HELP: Final = "checkpoint: an ID or unique ID prefix, latest, latest~2, step:100 or at:2026-01-31T12:00Z"
_PATH_SCHEMES: Final = ("file", "jsonl", "sqlite", "git")
"""Stores that are a path. They are opened only if it exists, because opening creates some of them."""
_ALTERNATIVES: Final = {
    "drill": "`ckpt-observe verify` checks its structure",
    "extract": "`ckpt-observe show` shows its keys, types and sizes",
    "prune": "`ckpt-observe show` shows its size; remove its checkpoints with the library that wrote them",
}
"""What to do with other formats instead of a command that loads or removes checkpoints."""


def add_store(parser: ArgumentParser) -> None:
    """Add the argument STORE."""
    parser.add_argument("store", metavar="STORE", help=STORE_HELP)


def open_checkpointer(location: str, retention: Retention | None = None) -> Checkpointer | None:
    """Return a Checkpointer for a store of the core, or None if the location is something else, for which there may be a reader.

    It decrypts if the variable of the key is set. CheckpointNotFoundError if the path does not exist.
    """
    url = store_url(location)
    cipher = AeadCipher() if os.environ.get(KEY_VARIABLE) else None
    return Checkpointer(url, encryption=cipher, retention=retention) if url else None


def require_checkpointer(location: str, command: str, retention: Retention | None = None) -> Checkpointer:
    """Return a Checkpointer; ConfigError if the location is not a store of the core, whose states alone can be loaded safely."""
    checkpointer = open_checkpointer(location, retention)
    if checkpointer is None:
        shown = printed_location(location)
        raise ConfigError(f"`{command}` needs a store of ckpt_observe.core, and {shown} is not one. Instead: {_ALTERNATIVES[command]}")
    return checkpointer


def printed_location(location: str) -> str:
    """Return a location as the user wrote it, without the password of a URL."""
    return without_credentials(location) if "://" in location else location


def store_url(location: str) -> str | None:
    """Return the URL of a store of the core, or None for anything else that exists. CheckpointNotFoundError if the path does not exist."""
    scheme, separator, _ = location.partition("://")
    scheme = scheme.lower()
    if separator and scheme not in _PATH_SCHEMES:
        stores.factory(scheme)  # ConfigError if there is no such scheme
        return location if is_core_url(location, ReadRequest()) else None
    path = path_of_url(location) if separator else os.path.abspath(os.path.expanduser(location))
    if not location or not os.path.exists(path):
        raise CheckpointNotFoundError(_describe_missing(location, path), code="not_found.path")
    if separator and scheme != "sqlite":
        return location
    with Candidate(path, ReadRequest()) as candidate:
        format = find_format(candidate)
    if format is None or format.name not in _PATH_SCHEMES:
        return None  # also for `sqlite://`: opening a database of another program as a store would create tables in it
    return location if scheme == format.name and separator else path_to_url(format.name, path)


def _describe_missing(location: str, path: str) -> str:
    """Say that a path does not exist. Three slashes are an absolute path, unlike in SQLAlchemy: say how to write a relative one."""
    scheme, separator, rest = location.partition("://")
    if separator and rest.startswith("/") and os.path.exists(rest.lstrip("/")):
        return f"{location!r} means {path!r}, which does not exist; for the relative path, write {scheme}://{rest.lstrip('/')}"
    named = f"{location!r} ({path})" if separator else repr(location)
    return f"{named} does not exist; name a store, file, directory or database"


def check_task(checkpointer: Checkpointer, task: str) -> str:
    """Return the task; CheckpointNotFoundError, with a similar name if there is one, if it has no checkpoint."""
    if checkpointer.store.ids(check_name(task, "task")):
        return task
    tasks = checkpointer.store.tasks()
    hint = suggest(task, tasks) or (f"; it has {len(tasks)} tasks, which `ckpt-observe show STORE` lists" if tasks else "; it is empty")
    raise CheckpointNotFoundError(f"there is no task {task!r} in {checkpointer.store.location}{hint}")


def find_checkpoint(checkpointer: Checkpointer, task: str, reference: str) -> CheckpointInfo:
    """Return the header of a checkpoint by reference or unique ID prefix.

    ConfigError if a prefix is ambiguous. CheckpointNotFoundError, with a similar ID if there is one, if nothing matches.
    """
    check_task(checkpointer, task)
    try:
        return checkpointer.resolve(task, reference)
    except CheckpointNotFoundError:
        return checkpointer.resolve(task, expand_prefix(checkpointer.store.ids(task), task, reference))
