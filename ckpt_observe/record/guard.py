"""Keeps errors of our own code away from the host program: each is caught, counted, and logged once per place."""

from __future__ import annotations

from collections import Counter

from ckpt_observe.errors import CkptObserveError
from ckpt_observe.support.host_exceptions import raise_host_exception
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
        except Exception as caught:  # raised by a log handler of the host program: must not reach its checkpoint code
            raise_host_exception(caught)
            faults["log"] += 1
