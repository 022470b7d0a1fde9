"""The one boundary between faults of ours and the host program: caught, counted, logged once for each place, never raised."""

from __future__ import annotations

import logging
from collections import Counter

from ckpt_observe.errors import CkptObserveError

logger = logging.getLogger("ckpt_observe")

faults: Counter[str] = Counter()
"""How often our own code failed, by exception type and place."""


def fault(error: BaseException) -> None:
    """Note a fault of our own. The first of its kind is logged with its traceback; what our own errors say needs none."""
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
