"""User code that the core calls: hooks before and after each operation, and providers of context for the header.

If a hook or provider raises an exception, it is logged once and the operation continues.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import msgspec

from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an operation or run to a hook."""

    moment: str
    """`before`, `after` or `failed`; from a runner `saved`, `loaded`, `resumed`, `failed` or `finished`."""
    operation: str
    """`save`, `load`, `restore`, `delete`; `prune` if retention failed after a save; `run` from a runner."""
    task: str
    id: str | None = None
    step: int | None = None
    status: str | None = None
    node: str | None = None
    """The node of a state graph that completed last; None in other programs."""
    time: dt.datetime = msgspec.field(default_factory=lambda: dt.datetime.now(dt.UTC))
    info: CheckpointInfo | None = None
    error: BaseException | None = None


Hook = Callable[[Event], object]
_warnings = WarningLog()


def emit(hooks: Iterable[Hook], event: Event) -> None:
    """Call every hook, in order. Exceptions that hooks raise are reported."""
    for hook in hooks:
        try:
            hook(event)
        except Exception as error:
            raise_host_exception(error)
            report_failure(hook, error, f"the event '{event.moment}' of {event.operation}, task {event.task!r}")


def report_failure(function: Callable[..., object], error: Exception, occasion: str) -> None:
    """Log an exception of a hook or provider, once for each type: it may be raised in every save. To record all of them, replace this."""
    named = function.__func__ if isinstance(function, MethodType) else function
    source = named if isinstance(named, FunctionType) else type(named)
    key = f"{source.__module__}.{source.__qualname__} {type(error).__module__}.{type(error).__qualname__}"
    _warnings.warn_once(key, "Hook %r raised an exception for %s. It is logged once.", function, occasion, exc_info=error)


@contextmanager
def notify_around(hooks: Sequence[Hook], operation: str, task: str, **details: Any) -> Iterator[CheckpointInfos]:
    """Call the hooks before the block and, as `after` or `failed`, at its end.

    The block can append the header of the checkpoint that it handled to the list, for the event `after`.
    """
    handled: CheckpointInfos = []
    if not hooks:
        yield handled
        return
    emit(hooks, Event(moment="before", operation=operation, task=task, **details))
    try:
        yield handled
    except BaseException as error:
        emit(hooks, Event(moment="failed", operation=operation, task=task, error=error, **details))
        raise
    if handled:
        details = {"id": handled[0].id, "step": handled[0].step, "status": handled[0].status, "info": handled[0]}
    emit(hooks, Event(moment="after", operation=operation, task=task, **details))


ContextProvider = Callable[[], dict[str, str]]
"""Returns strings such as host, trace or git commit. They are stored under `context` in the header; the core does not read them."""

providers: list[ContextProvider] = []


def gather() -> dict[str, str]:
    """Return the merged context of all providers, without those that raise or do not return strings."""
    context: dict[str, str] = {}
    for provider in providers:
        try:
            context.update(msgspec.convert(provider(), dict[str, str]))  # other types would make the header unreadable
        except Exception as error:
            raise_host_exception(error)
            report_failure(provider, error, "the context of a checkpoint")
    return context
