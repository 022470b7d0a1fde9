"""The reference core: operations of `Checkpointer`, phases of `core.steps`, and the link from a restore to its save.

The core knows nothing of this. Its own context seam carries the save's trace context into the checkpoint's header; the check before a
load sees that header, and so the load links back, across processes and days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.context import get_current

from ckpt_observe.instrument import reference_facts as facts
from ckpt_observe.instrument.base import Instrumentor
from ckpt_observe.instrument.calls import Observed
from ckpt_observe.instrument.operation import Begin
from ckpt_observe.instrument.targets import Target
from ckpt_observe.record import parents, phase
from ckpt_observe.record.guard import fault
from ckpt_observe.record.operation import Operation, current
from ckpt_observe.record.task import Task
from ckpt_observe.semconv import attributes as names

_CHECKPOINTER: Final = "ckpt_observe.core.checkpointer"
_STEPS: Final = "ckpt_observe.core.steps"
_WORKSPACE: Final = "ckpt_observe.core.workspace"
_CONTEXT: Final = "ckpt_observe.core.context"
_NAMED: Final = ("load", "restore", "delete")
"""Operations whose second argument is the checkpoint's id."""


def _operation(name: str) -> Begin:
    def begin(checkpointer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        if not parents.observing():
            return None
        store = checkpointer.store
        pipeline = checkpointer.pipeline
        codec, cipher = pipeline.codec, pipeline.cipher
        return Operation(
            name,
            {
                names.TASK_ID: facts.said(args[0] if args else kwargs.get("task")),
                names.STEP: facts.said(kwargs.get("step")),
                names.STATUS: facts.said(kwargs.get("status")),
                names.ID: facts.said(kwargs.get("id") or (args[1] if name in _NAMED and len(args) > 1 else None)),
            },
            facts.known(store.kind, store.location, pipeline.serializer.name, codec and codec.name, cipher and cipher.name),
        )

    return begin


def _finding(checkpointer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    query = args[0] if args else kwargs.get("query")
    return _listing(checkpointer, (getattr(query, "task", None),), {})


_listing: Final = _operation("list")
_loading_keys: Final = _operation("load")


def _opened(state: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return _loading_keys(state._fetcher, (state.info.task, state.info.id), {})


def _snapshot(name: str, id_at: int) -> Begin:
    def begin(workspace: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        if not parents.observing():
            return None
        id = args[id_at] if len(args) > id_at else kwargs.get("id")
        own = {names.TASK_ID: facts.said(workspace._task), names.ID: facts.said(id), names.STATE_TYPE: "directory"}
        return Operation(name, own, facts.known("git", workspace._repository.path, None, None, None))

    return begin


def _run(session_at: int, name: str | None = None) -> Begin:
    """A run is a task, unless the program has named one around it. A graph is called by nothing but an id, which is no name."""

    def begin(_instance: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Operation | None:
        if not parents.observing() or parents.TASK_KEY in get_current():
            return None
        session = args[session_at]
        id = facts.said(session.task)
        kind = Task if session._checkpointer.pipeline.cipher is None else _SecretTask
        return kind(name or id, {names.TASK_NAME: name or id, names.TASK_ID: id})

    return begin


class _SecretTask(Task):
    """A run whose checkpoints are encrypted: what an error says may quote its state."""

    __slots__ = ()
    tells_message = False


def _committing(batch: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Operation | None:
    if not parents.observing():
        return None
    store = batch._store
    return Operation("save", {names.COUNT: len(batch._drafts)}, facts.known(store.kind, store.location, None, None, None))


def _fetched(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load and restore come through here with the checkpoint that was really used, also when damaged ones were passed over."""
    restored = wrapped(*args, **kwargs)
    operation = current()
    if operation is not None:
        try:
            facts.loading(operation, restored)
        except Exception as error:
            fault(error)
    return restored


def _surroundings(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = wrapped(*args, **kwargs)
    operation = current()
    return given if operation is None else {**given, "traceparent": operation.traceparent()}


TARGETS: Final = (
    Target(_CHECKPOINTER, "Checkpointer.save", Observed(_operation("save"), fault, facts.saved)),
    Target(_CHECKPOINTER, "Checkpointer.load", Observed(_operation("load"), fault)),
    Target(_CHECKPOINTER, "Checkpointer.restore", Observed(_operation("restore"), fault)),
    Target(_CHECKPOINTER, "Checkpointer.delete", Observed(_operation("delete"), fault, facts.deleted)),
    Target(_CHECKPOINTER, "Checkpointer.list", Observed(_operation("list"), fault, facts.counted)),
    Target(_CHECKPOINTER, "Checkpointer.prune", Observed(_operation("prune"), fault, facts.pruned)),
    Target(_CHECKPOINTER, "Checkpointer.verify", Observed(_operation("verify"), fault, facts.verified)),
    Target(_CHECKPOINTER, "Checkpointer._fetch", _fetched),
    Target(_CHECKPOINTER, "Checkpointer.find", Observed(_finding, fault, facts.counted)),
    Target("ckpt_observe.core.lazy", "LazyState.some", Observed(_opened, fault)),
    Target(_WORKSPACE, "Workspace.save", Observed(_snapshot("save", 1), fault)),
    Target(_WORKSPACE, "Workspace.restore", Observed(_snapshot("restore", 1), fault)),
    Target(_WORKSPACE, "Workspace.delete", Observed(_snapshot("delete", 0), fault)),
    Target(_WORKSPACE, "Workspace.list", Observed(_snapshot("list", 0), fault, facts.counted)),
    Target("ckpt_observe.core.runner.agent", "_run", Observed(_run(0), fault)),
    Target("ckpt_observe.core.runner.graph", "_walk", Observed(_run(2, "graph"), fault)),
    Target("ckpt_observe.core.runner.graph", "_resume", Observed(_run(1, "graph"), fault)),
    Target("ckpt_observe.core.batch", "Batch.commit", Observed(_committing, fault)),
    Target(_STEPS, "serialize", phase.observed("serialize", lambda _, result: (None, len(result)))),
    Target(_STEPS, "compress", phase.observed("compress", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "encrypt", phase.observed("encrypt", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "write", phase.observed("write", lambda args, _: (len(args[2]), None))),
    Target(_STEPS, "write_many", phase.observed("write", lambda args, _: (sum(len(blob) for _, blob in args[1]), None))),
    Target(_STEPS, "confirm", phase.observed("validate", lambda args, _: (len(args[2]), None))),
    Target(_STEPS, "read", phase.observed("read", lambda _, result: (None, len(result)))),
    Target(_STEPS, "read_part", phase.observed("read", lambda _, result: (None, len(result)))),
    Target(_STEPS, "validate", phase.observed("validate", lambda args, _: (len(args[1]), None))),
    Target(_STEPS, "decrypt", phase.observed("decrypt", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "decompress", phase.observed("decompress", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "deserialize", phase.observed("deserialize", lambda args, _: (len(args[1]), None))),
    Target(_STEPS, "apply", phase.observed("apply", lambda _args, _: (None, None))),
    Target(_CONTEXT, "gather", _surroundings),
)


class ReferenceInstrumentor(Instrumentor):
    """Observes `ckpt_observe.core`."""

    name = "reference"
    library = "ckpt_observe.core"

    def targets(self) -> Sequence[Target]:
        return TARGETS
