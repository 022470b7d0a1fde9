"""Troubles, each kind said once: a full disk is news, and not ten times a second."""

from __future__ import annotations

import logging

logger = logging.getLogger("ckpt_observe")


class Once:
    """Says a trouble of a kind the first time."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def say(self, kind: str, trouble: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("ckpt_observe: %s", trouble)
