"""Finds and loads plug-ins of other packages, which announce them as entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from ckpt_observe.errors import ConfigError
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import warn


def names(group: str) -> list[str]:
    """Return the names of the entry points in a group, sorted. An empty list, after a warning, if a package has damaged metadata."""
    if not _is_announced(group):
        return []
    from importlib.metadata import entry_points  # noqa: PLC0415 - see _is_announced

    try:
        return sorted({entry.name for entry in entry_points(group=group)})
    except Exception as error:  # importlib.metadata parses the files of all packages, and raises TypeError for a line without "="
        raise_host_exception(error)
        warn("Plug-ins of the group %s are not used: an installed package has invalid entry points (%r)", group, error)
        return []


def load(group: str, name: str) -> Any:
    """Import the object behind an entry point. Raise ConfigError if there is none, or if it cannot be imported."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - see _is_announced

    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except Exception as error:  # code of a third party
            raise_host_exception(error)
            package = entry.dist.name if entry.dist else "an unknown package"
            raise ConfigError(f"cannot load {name!r} from {package} ({entry.value}): {type(error).__name__}: {error}") from error
    raise ConfigError(f"no installed package provides {name!r} in the entry point group {group}; install one that does")


def _is_announced(group: str) -> bool:
    """Return whether any installed package mentions the group.

    `importlib.metadata` answers this too, but importing and asking it takes 23 to 26 ms of CPU, and `import ckpt_observe.auto`, which runs
    in every program, would take a third longer (`python -m benchmarks.imports`). This check reads the same files in 2 ms.
    """
    header = f"[{group}]".encode()
    return any(header in content for content in _entry_point_files())


def _entry_point_files() -> Iterator[bytes]:
    for directory in sys.path:
        try:
            packages = [entry.path for entry in os.scandir(directory or ".") if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError as error:  # not a directory, such as a zip archive
            raise_host_exception(error)
            continue
        for package in packages:
            try:
                with open(os.path.join(package, "entry_points.txt"), "rb") as file:
                    yield file.read()
            except OSError as error:  # most packages have none
                raise_host_exception(error)
                continue
