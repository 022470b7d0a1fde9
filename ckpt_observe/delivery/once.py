"""Troubles, each kind said once: a full disk is news, and not ten times a second."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger("ckpt_observe")

MOST: Final = 1024
"""Kinds that are remembered, for a kind may be a journal; beyond it they are forgotten, and what is still so is said again."""


class Once:
    """Says a trouble of a kind the first time."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def say(self, kind: str, trouble: str) -> None:
        if kind not in self._told:
            if len(self._told) >= MOST:
                self._told.clear()
            self._told.add(kind)
            logger.warning("ckpt_observe: %s", trouble)
