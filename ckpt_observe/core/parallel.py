"""Work on other threads while this one waits or writes.

Where none is begun any more, because there are too many or the program is at its end and saves once more, this thread does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def each(call: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """What the call gives for each of them, side by side."""
    given = list(items)
    try:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return list(pool.map(call, given))
    except RuntimeError:  # what a pool says that begins no thread
        return [call(item) for item in given]


def begin(work: Callable[[], T]) -> Future[T]:
    """What the work will give."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-digest")
    try:
        result = pool.submit(work)
    except RuntimeError:  # as above
        result = Future()
        result.set_result(work())
    pool.shutdown(wait=False)
    return result
