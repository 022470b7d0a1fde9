"""Observes the reference core: operations of `Checkpointer` and `Workspace`, phases of `core.steps`, runs, and links to the save.

The core does not know that it is observed. Patching `core.hooks.gather` adds the save's trace context to the checkpoint's header. A load
reads the header, so its span links to that save, across processes and days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.reference_attributes import (
    record_count,
    record_deleted,
    record_loaded,
    record_pruned,
    record_saved,
    record_verified,
    shared_attributes,
)
from ckpt_observe.instrument.reference_deferred import Continuation, DeferredSave, ProvisionalSave, drop, unwritten_save
from ckpt_observe.instrument.reference_operation import CoreOperation
from ckpt_observe.instrument.runs import RunTask
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.wrappers import Args, BeginOperation, Kwargs, ObservedCall, TimedScope
from ckpt_observe.record import redact, running_tasks, trace_context
from ckpt_observe.record.failures import exception_attributes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation, current_operation
from ckpt_observe.record.phase import no_sizes, phase_wrapper
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import spans

_CHECKPOINTER: Final = "ckpt_observe.core.checkpointer"
_STEPS: Final = "ckpt_observe.core.steps"
_WORKSPACE: Final = "ckpt_observe.core.workspace"
_CONTEXT: Final = "ckpt_observe.core.hooks"
_ID_SECOND: Final = ("load", "restore", "delete")
"""Operations whose second argument is the checkpoint id."""


def _begin(name: str) -> BeginOperation:
    def begin(checkpointer: Any, args: Args, kwargs: Kwargs) -> Operation | None:
        return _create(CoreOperation, name, checkpointer.store, checkpointer.pipeline, args, kwargs)

    return begin


def _create(kind: type[Operation], name: str, store: Any, pipeline: Any, args: Args, kwargs: Kwargs) -> Operation | None:
    if not trace_context.may_record():
        return None
    attributes = {
        names.TASK_ID: args[0] if args else kwargs.get("task"),
        names.STEP: kwargs.get("step"),
        names.STATUS: kwargs.get("status"),
        names.ID: kwargs.get("id") or (args[1] if name in _ID_SECOND and len(args) > 1 else None),
    }
    codec, cipher = pipeline.codec, pipeline.cipher
    shared = shared_attributes(store.kind, store.location, pipeline.serializer.name, codec and codec.name, cipher and cipher.name)
    return kind(name, attributes, shared)


def _begin_prune(checkpointer: Any, args: Args, kwargs: Kwargs) -> Operation | None:
    operation = _create(CoreOperation, "prune", checkpointer.store, checkpointer.pipeline, args, kwargs)
    if operation is not None and kwargs.get("_current"):  # called by the core after a save
        operation.set_trusted({names.RETENTION: True})
    return operation


def _begin_save(checkpointer: Any, args: Args, kwargs: Kwargs) -> TimedScope | None:
    deferred = unwritten_save()
    if deferred is not None:
        return Continuation(deferred)
    return _create(CoreOperation, "save", checkpointer.store, checkpointer.pipeline, args, kwargs)


def _begin_save_in_thread(owner: Any, args: Args, kwargs: Kwargs) -> Operation | None:
    return _create(DeferredSave, "save", owner.checkpointer.store, owner.checkpointer.pipeline, args, kwargs)


def _begin_stage(checkpointer: Any, _args: Args, _kwargs: Kwargs) -> Operation | None:
    if unwritten_save() is not None:
        return None
    return _create(ProvisionalSave, "save", checkpointer.store, checkpointer.pipeline, (), {})


def _begin_batch_save(batch: Any, args: Args, kwargs: Kwargs) -> Operation | None:
    return _create(ProvisionalSave, "save", batch._store, batch._drafter._pipeline, args, kwargs)


def _begin_find(checkpointer: Any, args: Args, kwargs: Kwargs) -> Any:
    query = args[0] if args else kwargs.get("query")
    return _begin_list(checkpointer, (getattr(query, "task", None),), {})


_begin_list: Final = _begin("list")
_begin_load: Final = _begin("load")


def _begin_lazy_load(state: Any, _args: Args, _kwargs: Kwargs) -> Any:
    return _begin_load(state._fetcher, (state.info.task, state.info.id), {})


def _begin_snapshot(name: str, id_at: int) -> BeginOperation:
    def begin(workspace: Any, args: Args, kwargs: Kwargs) -> Operation | None:
        if not trace_context.may_record():
            return None
        id = args[id_at] if len(args) > id_at else kwargs.get("id")
        attributes = {names.TASK_ID: workspace._task, names.ID: id, names.STATE_TYPE: "directory"}
        return CoreOperation(name, attributes, shared_attributes("git", workspace._repository.path, None, None, None))

    return begin


def _begin_run(session_at: int, name: str | None = None) -> BeginOperation:
    """Return a function that begins a task for a run, unless the program has begun a task itself.

    `session_at` is the position of the session in the arguments. `name` is the task's name, by default the id of the run.
    """

    def begin(_instance: Any, args: Args, _kwargs: Kwargs) -> Operation | None:
        if not trace_context.may_record() or running_tasks.enclosing_task() is not None:
            return None
        session = args[session_at]
        id = session.task
        kind = RunTask if session._checkpointer.pipeline.cipher is None else _SecretTask
        return kind({names.TASK_NAME: name or id, names.TASK_ID: id})

    return begin


class _SecretTask(RunTask):
    """A run whose checkpoints are encrypted. Error messages are not recorded, because they may quote the state."""

    __slots__ = ()
    records_message = False


def _begin_commit(batch: Any, _args: Args, _kwargs: Kwargs) -> Operation | None:
    if not trace_context.may_record():
        return None
    store = batch._store
    return CoreOperation("save", {names.COUNT: len(batch._drafts)}, shared_attributes(store.kind, store.location, None, None, None))


def _wrap_fetch(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Record which checkpoint a load or restore really used, which may not be the newest if that one is damaged."""
    restored = wrapped(*args, **kwargs)
    operation = current_operation()
    if operation is not None:
        try:
            record_loaded(operation, restored)
        except Exception as error:
            record_fault(error)
    return restored


def _wrap_gather(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Add the trace context of the running save to the context that the core stores."""
    context = wrapped(*args, **kwargs)
    operation = current_operation()
    return context if operation is None or isinstance(operation, ProvisionalSave) else {**context, "traceparent": operation.traceparent()}


_wrap_hook_phase: Final = phase_wrapper("hook", no_sizes)


def _wrap_hooks(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make calls of hooks a phase, unless another one is running: within `remove` there may be thousands."""
    operation = current_operation()
    if operation is None or operation.running_phase:
        return wrapped(*args, **kwargs)
    return _wrap_hook_phase(wrapped, instance, args, kwargs)


def _wrap_report_failure(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Record the exception of a hook as an event of the running operation, which does not fail."""
    operation = current_operation()
    if operation is not None:
        try:
            function, error, _ = args
            name = redact.name(getattr(function, "__qualname__", type(function).__qualname__))
            operation.add_event(spans.EVENT_HOOK_FAILED, {names.HOOK: name, **exception_attributes(error, stack=False)})
        except Exception as fault:
            record_fault(fault)
    return wrapped(*args, **kwargs)


TARGETS: Final = (
    Target(_CHECKPOINTER, "Checkpointer.save", ObservedCall(_begin_save, record_fault, record_saved), why="operation `save`"),
    Target(_CHECKPOINTER, "Checkpointer.stage", ObservedCall(_begin_stage, record_fault, drop), why="operation `save`, if it fails"),
    Target(_CHECKPOINTER, "Checkpointer.load", ObservedCall(_begin("load"), record_fault), why="operation `load`"),
    Target(_CHECKPOINTER, "Checkpointer.restore", ObservedCall(_begin("restore"), record_fault), why="operation `restore`"),
    Target(_CHECKPOINTER, "Checkpointer.delete", ObservedCall(_begin("delete"), record_fault, record_deleted), why="operation `delete`"),
    Target(_CHECKPOINTER, "Checkpointer.list", ObservedCall(_begin("list"), record_fault, record_count), why="operation `list`"),
    Target(_CHECKPOINTER, "Checkpointer.prune", ObservedCall(_begin_prune, record_fault, record_pruned), why="operation `prune`"),
    Target(_CHECKPOINTER, "Checkpointer.verify", ObservedCall(_begin("verify"), record_fault, record_verified), why="operation `verify`"),
    Target(_CHECKPOINTER, "Checkpointer.drill", ObservedCall(_begin("drill"), record_fault, record_loaded), why="operation `drill`"),
    Target(_CHECKPOINTER, "Checkpointer._fetch", _wrap_fetch, why="the checkpoint that a load or restore really used"),
    Target(_CHECKPOINTER, "Checkpointer.find", ObservedCall(_begin_find, record_fault, record_count), why="operation `list`"),
    Target("ckpt_observe.core.loading.lazy", "LazyState.get_many", ObservedCall(_begin_lazy_load, record_fault), why="operation `load`"),
    Target(_WORKSPACE, "Workspace.save", ObservedCall(_begin_snapshot("save", 1), record_fault), why="operation `save`"),
    Target(_WORKSPACE, "Workspace.restore", ObservedCall(_begin_snapshot("restore", 1), record_fault), why="operation `restore`"),
    Target(_WORKSPACE, "Workspace.delete", ObservedCall(_begin_snapshot("delete", 0), record_fault), why="operation `delete`"),
    Target(_WORKSPACE, "Workspace.list", ObservedCall(_begin_snapshot("list", 0), record_fault, record_count), why="operation `list`"),
    Target("ckpt_observe.core.runner.agent", "_run", ObservedCall(_begin_run(0), record_fault), why="a task"),
    Target("ckpt_observe.core.runner.graph", "_walk", ObservedCall(_begin_run(2, "graph"), record_fault), why="a task"),
    Target("ckpt_observe.core.runner.graph", "_resume", ObservedCall(_begin_run(1, "graph"), record_fault), why="a task"),
    Target(
        "ckpt_observe.core.background",
        "BackgroundCheckpointer.save",
        ObservedCall(_begin_save_in_thread, record_fault, record_saved),
        why="operation `save`",
    ),
    Target(
        "ckpt_observe.core.background",
        "BackgroundCheckpointer._wait_for_slot",
        phase_wrapper("wait", lambda _args, _: (None, None)),
        why="phase `wait`",
    ),
    Target(
        "ckpt_observe.core.aio",
        "AsyncCheckpointer._start_save",
        ObservedCall(_begin_save_in_thread, record_fault, record_saved),
        why="operation `save`",
    ),
    Target(
        "ckpt_observe.core.saving.batch",
        "Batch.save",
        ObservedCall(_begin_batch_save, record_fault, drop),
        why="operation `save`, if it fails before the commit",
    ),
    Target("ckpt_observe.core.saving.batch", "Batch.commit", ObservedCall(_begin_commit, record_fault), why="operation `save`"),
    Target(_STEPS, "serialize", phase_wrapper("serialize", lambda _, result: (None, len(result[0]))), why="phase `serialize`"),
    Target(_STEPS, "compress", phase_wrapper("compress", lambda args, result: (len(args[1]), len(result))), why="phase `compress`"),
    Target(_STEPS, "encrypt", phase_wrapper("encrypt", lambda args, result: (len(args[1]), len(result))), why="phase `encrypt`"),
    Target(_STEPS, "write", phase_wrapper("write", lambda args, _: (len(args[2]), None)), why="phase `write`"),
    Target(
        _STEPS, "write_many", phase_wrapper("write", lambda args, _: (sum(len(blob) for _, blob in args[1]), None)), why="phase `write`"
    ),
    Target(_STEPS, "confirm", phase_wrapper("validate", lambda args, _: (len(args[2]), None)), why="phase `validate`"),
    Target(_STEPS, "read", phase_wrapper("read", lambda _, result: (None, len(result))), why="phase `read`"),
    Target(_STEPS, "read_part", phase_wrapper("read", lambda _, result: (None, len(result))), why="phase `read`"),
    Target(_STEPS, "validate", phase_wrapper("validate", lambda args, _: (len(args[0]), None)), why="phase `validate`"),
    Target(_STEPS, "validate_key", phase_wrapper("validate", lambda args, _: (len(args[1]), None)), why="phase `validate`"),
    Target(_STEPS, "decrypt", phase_wrapper("decrypt", lambda args, result: (len(args[1]), len(result))), why="phase `decrypt`"),
    Target(_STEPS, "decompress", phase_wrapper("decompress", lambda args, result: (len(args[1]), len(result))), why="phase `decompress`"),
    Target(_STEPS, "deserialize", phase_wrapper("deserialize", lambda args, _: (len(args[1]), None)), why="phase `deserialize`"),
    Target(_STEPS, "apply", phase_wrapper("apply", no_sizes), why="phase `apply`"),
    *(
        Target(_STEPS, name, phase_wrapper("read", no_sizes), why="phase `read`")
        for name in ("find_newest", "list_task", "find", "list_ids", "list_names", "read_header")
    ),
    *(Target(_STEPS, name, phase_wrapper(name, no_sizes), why=f"phase `{name}`") for name in ("digest", "retain", "remove")),
    *(
        Target(_WORKSPACE, f"Workspace.{name}", phase_wrapper(phase, no_sizes), why=f"phase `{phase}`")
        for name, phase in (
            ("_write", "write"),
            ("_references", "read"),
            ("_validate", "validate"),
            ("_check_out", "apply"),
            ("_remove", "remove"),
        )
    ),
    Target(_CONTEXT, "emit", _wrap_hooks, why="phase `hook`"),
    Target("ckpt_observe.core.saving.batch", "Batch._call_hooks", _wrap_hooks, why="phase `hook`"),
    Target(_CONTEXT, "report_failure", _wrap_report_failure, why="the event `checkpoint.hook_failed`"),
    Target(_CONTEXT, "gather", _wrap_gather, why="the trace of the save, stored in the checkpoint"),
)


class ReferenceInstrumentor(Instrumentor):
    """Observes the bundled reference checkpoint library: checkpoints, workspaces, and runs of its runners as tasks.

    It does not know that it is observed. A checkpoint contains the trace of its save, so a load links to it in any process.
    """

    name = "reference"
    library = "ckpt_observe.core"

    def targets(self) -> Sequence[Target]:
        return TARGETS
