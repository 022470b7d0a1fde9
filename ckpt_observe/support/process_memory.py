"""The memory of this process, for records that outlive it."""

from __future__ import annotations

import re
from typing import Final

from ckpt_observe.support.host_exceptions import raise_host_exception

_PEAK: Final = re.compile(rb"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_memory() -> int:
    """Return the peak resident memory of the process so far, in bytes; 0 if the system does not report it.

    Not `ru_maxrss`: a program that a large process starts inherits the peak of that process. For threads of ours, because it reads a file.
    """
    try:
        with open("/proc/self/status", "rb") as file:
            match = _PEAK.search(file.read())
    except OSError as error:  # not Linux
        raise_host_exception(error)
        return 0
    return 0 if match is None else int(match[1]) * 1024
