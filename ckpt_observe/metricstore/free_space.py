"""Free disk space at the locations of checkpoints, measured without waiting for a file system that hangs.

A network file system whose server is down can block a caller for hours, and that is when people look at metrics. Each path is therefore
measured by its own thread with a short deadline. A path that has not answered is not measured again until it has.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable
from time import monotonic
from typing import Final
from urllib.parse import unquote, urlsplit

DEADLINE: Final = 1.0
"""Seconds. A working file system answers in microseconds."""
_LOCAL_SCHEMES: Final = ("", "file", "git", "jsonl", "sqlite")
"""Schemes of locations that are paths on this machine."""
_blocked: dict[str, threading.Thread] = {}
"""Paths that did not answer in time, with the thread that still waits."""


def free_bytes(locations: Iterable[str]) -> dict[str, float]:
    """Return the bytes that an ordinary user can still write, by location.

    Locations on other machines, and paths that do not exist or do not answer in time, are omitted.
    """
    results: dict[str, float] = {}
    paths = {location: path for location in locations if (path := _local_path(location))}
    threads = {path: _start_measuring(path, results) for path in set(paths.values()) if not _is_blocked(path)}
    deadline = monotonic() + DEADLINE
    for path, thread in threads.items():
        thread.join(max(0.0, deadline - monotonic()))
        if thread.is_alive():
            _blocked[path] = thread
    return {location: results[path] for location, path in paths.items() if path in results}


def _is_blocked(path: str) -> bool:
    return path in _blocked and _blocked[path].is_alive()


def _start_measuring(path: str, results: dict[str, float]) -> threading.Thread:
    thread = threading.Thread(target=_measure, args=(path, results), name="ckpt-observe-space", daemon=True)
    thread.start()
    return thread


def _measure(path: str, results: dict[str, float]) -> None:
    try:
        results[path] = float(shutil.disk_usage(path).free)
    except (OSError, ValueError):
        pass  # the path does not exist, is on another machine, or is not valid


def _local_path(location: str) -> str:
    """Return the path on this machine that a location refers to, or an empty string."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return ""
    return unquote(parts.path) if parts.scheme in _LOCAL_SCHEMES and not parts.netloc and parts.path.startswith("/") else ""
