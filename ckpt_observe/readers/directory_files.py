"""The files of a directory, without following links to directories."""

from __future__ import annotations

import os
import stat

from ckpt_observe.readers.contents import Breakdown, Entry, largest_first
from ckpt_observe.readers.source import Limits, exceeds
from ckpt_observe.support.errnos import translate_os_errors


def file_sizes(path: str, limits: Limits) -> dict[str, int]:
    """Return the bytes of each regular file below a directory, by its path inside."""
    sizes: dict[str, int] = {}
    seen_count = 0
    with translate_os_errors(f"listing {path}"):
        for parent, directories, names in os.walk(path):
            seen_count += len(names) + len(directories)
            if seen_count > limits.steps:
                raise exceeds(f"the number of files in {path}", "steps", limits.steps)
            for name in names:
                file = os.path.join(parent, name)
                status = os.stat(file) if os.path.exists(file) else os.lstat(file)
                if stat.S_ISREG(status.st_mode):
                    sizes[os.path.relpath(file, path)] = status.st_size
    return sizes


def by_file(sizes: dict[str, int]) -> Breakdown:
    """Return the files as a breakdown."""
    return Breakdown("file", largest_first(Entry(name=name, type="file", size=size) for name, size in sizes.items()), 0)
