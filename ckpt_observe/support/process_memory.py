"""The memory of this process, for records that outlive it."""

from __future__ import annotations

_KIB = 1024  # ru_maxrss is in KiB on Linux

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # no POSIX system

    def peak_memory() -> int:
        """Return 0: this system does not report it."""
        return 0
else:

    def peak_memory() -> int:
        """Return the peak resident memory of the process so far, in bytes. It takes a microsecond and keeps the GIL."""
        return getrusage(RUSAGE_SELF).ru_maxrss * _KIB
