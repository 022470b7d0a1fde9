"""What an operation used, where the kernel tells cheaply: one `getrusage` of the calling thread.

It is a system call (0.8 µs), so it is made once at the beginning and then only after something that took longer than 0.1 ms, where it
costs nothing in comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ckpt_observe.semconv import attributes as names

WORTH_ASKING: Final = 100_000
"""Nanoseconds below which CPU time is not asked for."""

_BLOCK: Final = 512  # ru_inblock and ru_oublock count blocks of 512 bytes, whatever the file system's are
_KIB: Final = 1024  # ru_maxrss is in KiB on Linux

try:
    from resource import RUSAGE_THREAD, getrusage

    usage: Callable[[], Any] = partial(getrusage, RUSAGE_THREAD)
except ImportError:  # only Linux counts by thread
    usage = lambda: None  # noqa: E731
"""What the calling thread has used so far, or None where the system does not tell."""


def cpu_seconds(before: Any, after: Any) -> float:
    seconds: float = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(seconds, 6)


def used(before: Any, after: Any) -> dict[str, Any]:
    """The difference of two readings as attributes; zeros are left out."""
    found = {
        names.CPU_TIME: cpu_seconds(before, after),
        names.MEMORY_PEAK: after.ru_maxrss * _KIB,
        names.MEMORY_GROWTH: (after.ru_maxrss - before.ru_maxrss) * _KIB,
        names.IO_READ: (after.ru_inblock - before.ru_inblock) * _BLOCK,
        names.IO_WRITE: (after.ru_oublock - before.ru_oublock) * _BLOCK,
    }
    return {name: value for name, value in found.items() if value}
