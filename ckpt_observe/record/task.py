"""Tasks: the runs that make checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context, attach

from ckpt_observe.record.operation import Operation, where
from ckpt_observe.record.parents import SPAN_KEY, TASK_KEY
from ckpt_observe.semconv import events


class Task(Operation):
    """A run that makes checkpoints. What `shared` holds is put on every operation within it."""

    __slots__ = ("_chain", "shared")

    kind = events.TASK

    def __init__(self, name: str, shared: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, {**shared, **(attributes or {})})
        self.shared = shared
        self._chain: tuple[str, ...] | None = None

    def begin(self) -> Context | None:
        here = super().begin()
        self.shared = {**self.inherited, **self.shared}
        if self.ancestors is not None:
            self._chain = (*self.ancestors, events.ancestor(self.span_id, self.kind, self.name))
        return here

    def chain(self) -> tuple[str, ...] | None:
        return self._chain

    def _make_current(self, here: Context) -> None:
        self._here = where.set(None)
        self._token = attach(Context({**here, SPAN_KEY: self, TASK_KEY: self}))
