"""Keeps errors of our own code away from the host program: each is caught, counted, and logged once per place."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from ckpt_observe.errors import CkptObserveError
from ckpt_observe.support.logs import logger

faults: Counter[str] = Counter()
"""How often our own code failed, by exception type and place."""


def record_fault(error: BaseException) -> None:
    """Count an exception of our own code, and log the first of its kind. Errors that we raise on purpose are logged without traceback.

    Exceptions that are not ours are raised again: those that a signal handler of the host program raised while our code was running (a
    timeout, say), and KeyboardInterrupt, SystemExit and the like.
    """
    raise_host_exception(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else "?"
    fault = f"{type(error).__name__} at {place}"
    faults[fault] += 1
    if faults[fault] == 1:
        try:
            if isinstance(error, CkptObserveError):
                logger.warning("Checkpoints are not observed: %s", error)
            else:
                logger.warning("Internal error in ckpt_observe; your program is not affected: %s", fault, exc_info=error)
        except Exception:  # raised by a log handler of the host program: must not reach its checkpoint code
            faults["log"] += 1


def raise_host_exception(error: BaseException) -> None:
    """Raise the exception again if a signal handler of the host program raised it, or if it is a KeyboardInterrupt or the like."""
    if not isinstance(error, Exception) or _comes_from_signal_handler(error.__traceback__):
        raise error


def _comes_from_signal_handler(trace: TracebackType | None) -> bool:
    if threading.current_thread() is not threading.main_thread():  # signal handlers run only there
        return False
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Any:
    """Return the code object of a signal handler, or None if it has none."""
    if not callable(handler):  # SIG_DFL, SIG_IGN, or installed by C code
        return None
    handler = getattr(handler, "func", handler)  # functools.partial
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
