"""Hooks: own code told about each operation, before and after. One that fails is logged and fails nothing."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable

import msgspec

from ckpt_observe.core.model import CheckpointInfo


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, or is about to."""

    moment: str
    """`before`, `after` or `failed`; of a runner also `resumed` and `finished`."""
    operation: str
    """`save`, `load`, `restore`, `delete` or `run`."""
    task: str
    id: str | None = None
    step: int | None = None
    status: str | None = None
    node: str | None = None
    """Of a state graph: the node that had just completed."""
    time: dt.datetime = msgspec.field(default_factory=lambda: dt.datetime.now(dt.UTC))
    info: CheckpointInfo | None = None
    error: BaseException | None = None


Hook = Callable[[Event], object]


def emit(hooks: Iterable[Hook], event: Event) -> None:
    """Tell every hook, in order."""
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            message = "hook %r failed %s %s of %r"
            logging.getLogger(__name__).warning(message, hook, event.moment, event.operation, event.task, exc_info=True)
