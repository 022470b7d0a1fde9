"""Ids from the system's randomness: a training run's `random` is neither moved by us nor, reseeded, makes us repeat ourselves."""

from __future__ import annotations

import os
from typing import Final

from ckpt_observe.support import forks

_IDS_PER_REFILL: Final = 512
_pool: list[str] = []


def new_span_id() -> str:
    """16 hex digits. Safe in threads and signal handlers: `list.pop` is one step."""
    try:
        return _pool.pop()
    except IndexError:
        digits = os.urandom(8 * _IDS_PER_REFILL).hex()
        fresh = [digits[i : i + 16] for i in range(0, len(digits), 16)]
        mine = fresh.pop()
        _pool.extend(fresh)
        return mine


def new_trace_id() -> str:
    """32 hex digits."""
    try:
        return _pool.pop() + _pool.pop()
    except IndexError:
        return new_span_id() + new_span_id()


forks.run_in_child(_pool.clear)
