"""How much room is left where checkpoints go, asked without waiting for a file system that hangs.

A network file system whose server is away keeps whoever asks it for hours, and that is when the metrics are looked at. So each place is
asked by a thread of its own, for a moment; one that has not answered is not asked again until it has.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable
from time import monotonic
from typing import Final
from urllib.parse import unquote, urlsplit

PATIENCE: Final = 1.0
"""Seconds. A file system that is well answers in microseconds."""
_LOCAL: Final = ("", "file", "git", "jsonl", "sqlite")
"""Schemes of locations that are paths of this host."""
_hanging: dict[str, threading.Thread] = {}
"""Who asked a path and had no answer in time."""


def free(locations: Iterable[str]) -> dict[str, float]:
    """Bytes that an ordinary user may still write, by location. Those that are not on this host, or do not answer, are left out."""
    found: dict[str, float] = {}
    places = {location: path for location in locations if (path := _path(location))}
    asking = {path: _asked(path, found) for path in set(places.values()) if not _hangs(path)}
    deadline = monotonic() + PATIENCE
    for path, thread in asking.items():
        thread.join(max(0.0, deadline - monotonic()))
        if thread.is_alive():
            _hanging[path] = thread
    return {location: found[path] for location, path in places.items() if path in found}


def _hangs(path: str) -> bool:
    return path in _hanging and _hanging[path].is_alive()


def _asked(path: str, found: dict[str, float]) -> threading.Thread:
    thread = threading.Thread(target=_ask, args=(path, found), name="ckpt-observe-space", daemon=True)
    thread.start()
    return thread


def _ask(path: str, found: dict[str, float]) -> None:
    try:
        found[path] = float(shutil.disk_usage(path).free)
    except (OSError, ValueError):
        pass  # gone, another host's, or no path at all


def _path(location: str) -> str:
    """The path that a location means, or nothing."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return ""
    return unquote(parts.path) if parts.scheme in _LOCAL and not parts.netloc and parts.path.startswith("/") else ""
