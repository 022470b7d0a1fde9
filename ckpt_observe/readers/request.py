"""What a caller asks a reader for."""

from __future__ import annotations

import msgspec

from ckpt_observe.readers.source import Limits


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `read` that are the same for all formats."""

    depth: int = 1
    """Levels of keys: 1 for the top-level ones."""
    task: str | None = None
    """Only this task (LangGraph: thread) of a store or database."""
    checkpoint: str | None = None
    """Only this checkpoint of the task: an id, a unique start of one, `latest`, `latest~2`, `step:100` or `at:<time>`."""
    limits: Limits = Limits()
