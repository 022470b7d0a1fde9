"""Hooks: own code told about each operation, before and after. One that fails is logged and fails nothing."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, or is about to."""

    moment: str
    """`before`, `after` or `failed`; of a runner `saved`, `loaded`, `resumed`, `failed` or `finished`."""
    operation: str
    """`save`, `load`, `restore`, `delete`; `prune` where tidying up after a save failed; `run` of a runner."""
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


@contextmanager
def told(hooks: Iterable[Hook], operation: str, task: str, **facts: Any) -> Iterator[CheckpointInfos]:
    """Tell the hooks before and after the block, which leaves the checkpoint it handled in the list."""
    done: CheckpointInfos = []
    emit(hooks, Event(moment="before", operation=operation, task=task, **facts))
    try:
        yield done
    except BaseException as error:
        emit(hooks, Event(moment="failed", operation=operation, task=task, error=error, **facts))
        raise
    if done:
        facts = {"id": done[0].id, "step": done[0].step, "status": done[0].status, "info": done[0]}
    emit(hooks, Event(moment="after", operation=operation, task=task, **facts))


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
