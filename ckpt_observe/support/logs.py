"""The logger of the package, and warnings that are logged once.

Log lines do not repeat the logger's name: formatters print it.
"""

from __future__ import annotations

import logging
from typing import Final

from ckpt_observe.support.host_exceptions import ignore_errors

logger: Final = logging.getLogger("ckpt_observe")

MAX_KEYS: Final = 1024
"""Keys that are remembered; a key may be the path of a journal. Beyond that all are forgotten, and what persists is logged again."""


class WarningLog:
    """Logs the first warning of each key, until `clear(key)`: a full disk is news, but not ten times a second."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def warn_once(self, key: str, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log a warning, unless one with this key was logged since the last `clear(key)`. Never raises."""
        if key not in self._keys:
            if len(self._keys) >= MAX_KEYS:
                self._keys.clear()
            self._keys.add(key)
            warn(message, *args, exc_info=exc_info)

    def clear(self, key: str) -> None:
        """Forget a key: the condition is over, and its next occurrence is logged again."""
        self._keys.discard(key)


def warn(message: str, *args: object, exc_info: BaseException | None = None) -> None:
    """Log a warning. Exceptions of the host program's log handlers are dropped."""
    with ignore_errors(Exception):
        logger.warning(message, *args, exc_info=exc_info)


def log_error(message: str, *args: object) -> None:
    """Log an error. Exceptions of the host program's log handlers are dropped."""
    with ignore_errors(Exception):
        logger.error(message, *args)
