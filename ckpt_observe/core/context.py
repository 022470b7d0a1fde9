"""Facts about the surroundings of a save that a program may add to every checkpoint: host, trace, git commit.

Each provider returns a few strings; they are kept under `context` in the checkpoint's header and come back with its
CheckpointInfo. The core neither knows nor reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

Provider = Callable[[], dict[str, str]]

providers: list[Provider] = []


def gather() -> dict[str, str]:
    """What all providers say now. One that fails is logged and left out: a save is worth more than its surroundings."""
    facts: dict[str, str] = {}
    for provider in providers:
        try:
            facts.update(msgspec.convert(provider(), dict[str, str]))  # anything else would be a header that nobody can read
        except Exception:
            logging.getLogger(__name__).warning("context provider %r failed", provider, exc_info=True)
    return facts
