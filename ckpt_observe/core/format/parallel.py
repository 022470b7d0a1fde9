"""Work on other threads, such as hashing while the caller writes.

If no thread can be started, because there are too many or the interpreter is shutting down, the calling thread does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ckpt_observe.support.host_exceptions import raise_host_exception

S = TypeVar("S")
T = TypeVar("T")


def map_all(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Return the results for all items, in order, computed on up to four threads."""
    arguments = list(items)
    try:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return list(pool.map(function, arguments))
    except RuntimeError as error:  # the pool could not start a thread
        raise_host_exception(error)
        return [function(argument) for argument in arguments]


def start(work: Callable[[], T]) -> Future[T]:
    """Run the work on a new thread and return its future, or run it now if no thread can be started."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-digest")
    try:
        future = pool.submit(work)
    except RuntimeError as error:  # the pool could not start a thread
        raise_host_exception(error)
        future = Future()
        future.set_result(work())
    pool.shutdown(wait=False)
    return future
