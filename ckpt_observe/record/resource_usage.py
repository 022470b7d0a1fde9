"""CPU time, memory and I/O of an operation, from one `getrusage` of the calling thread.

This is a system call (0.8 µs). It is made at the start of an operation, unless the last one of that name took less than 0.5 ms, at the end
of one that took longer, and after its phases of more than 0.1 ms, where its cost does not matter. A LangGraph `put` on SQLite takes about
0.1 ms, and observation adds 45 µs to it, so that two readings would be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ckpt_observe.semconv import attributes as names

LEAST_OPERATION: Final = 500_000
"""Nanoseconds that an operation must take for its resource usage to be read."""
LEAST_PHASE: Final = 100_000
"""The same for a phase of such an operation."""

_BLOCK: Final = 512  # ru_inblock and ru_oublock count blocks of 512 bytes on every file system
_KIB: Final = 1024  # ru_maxrss is in KiB on Linux

try:
    from resource import RUSAGE_THREAD, getrusage

    read_usage: Callable[[], Any] = partial(getrusage, RUSAGE_THREAD)
except ImportError:  # only Linux counts per thread
    read_usage = lambda: None  # noqa: E731
"""Returns what the calling thread has used so far, or None if the system does not report it."""


def cpu_seconds(before: Any, after: Any) -> float:
    """Return the seconds of CPU time between two readings."""
    seconds: float = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)  # another order may give -0.0
    return round(seconds, 6)


def usage_attributes(before: Any, after: Any) -> dict[str, Any]:
    """Return CPU time, memory growth and I/O between two readings, and the peak memory of the process, as attributes without zeros."""
    attributes = {
        names.CPU_TIME: cpu_seconds(before, after),
        names.MEMORY_PEAK: after.ru_maxrss * _KIB,
        names.MEMORY_GROWTH: (after.ru_maxrss - before.ru_maxrss) * _KIB,
        names.IO_READ: (after.ru_inblock - before.ru_inblock) * _BLOCK,
        names.IO_WRITE: (after.ru_oublock - before.ru_oublock) * _BLOCK,
    }
    return {name: value for name, value in attributes.items() if value}
