"""The one boundary between faults of ours and the host program: caught, counted, logged once for each place, never raised."""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from ckpt_observe.errors import CkptObserveError

logger = logging.getLogger("ckpt_observe")

faults: Counter[str] = Counter()
"""How often our own code failed, by exception type and place."""


def fault(error: BaseException) -> None:
    """Note a fault of our own. The first of its kind is logged with its traceback; what our own errors say needs none.

    What a signal handler of the host raised while our code happened to run, a time-out say, is not ours, and goes on its way.
    """
    if not isinstance(error, Exception) or _of_a_handler(error.__traceback__):
        raise error
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else "?"
    kind = f"{type(error).__name__} at {place}"
    faults[kind] += 1
    if faults[kind] == 1:
        try:
            if isinstance(error, CkptObserveError):
                logger.warning("ckpt_observe: not observing: %s", error)
            else:
                logger.warning("ckpt_observe: a fault of its own, your program is not affected: %s", kind, exc_info=error)
        except Exception:  # a handler of the host's that raises must not do so through us
            faults["log"] += 1


def _of_a_handler(trace: TracebackType | None) -> bool:
    """Whether the exception came out of a signal handler."""
    if threading.current_thread() is not threading.main_thread():  # handlers run nowhere else
        return False
    codes = {_code(signal.getsignal(each)) for each in signal.valid_signals()} - {None}
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Any:
    if not callable(handler):  # SIG_DFL, SIG_IGN, or one that C installed
        return None
    handler = getattr(handler, "func", handler)  # functools.partial
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
