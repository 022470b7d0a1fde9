"""Carries the context to the processes that `multiprocessing` and process pools start, so that their saves are in the trace of their task.

| start method | how the context arrives |
| --- | --- |
| fork | the child inherits it |
| spawn, forkserver | as an attribute of the `Process` object, which is pickled for the child. It is removed after the start |
| worker of a pool | each submitted function carries the context of its caller, because a worker runs functions of several callers |

The context is applied when the child is observed: because its main module, or the module of its target, imports `ckpt_observe.auto`, or
because of `ckpt-observe run`. A child that is not observed ignores it, and `os.environ` is never changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.context import Context

from ckpt_observe.instrument.import_hooks import when_imported
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record import running_tasks
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.packed_context import pack, unpack
from ckpt_observe.record.recorder import recorder

ATTRIBUTE: Final = "_ckpt_observe_context"
"""The attribute of a `Process` object, while it is pickled."""
SPAWN_ARGUMENT: Final = "--multiprocessing-fork"
"""An argument of the interpreter in a process that was started with spawn."""
_POOL_WORKERS: Final = {("multiprocessing.pool", "worker"), ("concurrent.futures.process", "_process_worker")}
"""Module and name of the target of a worker of a pool."""


def _launch(wrapped: Callable[..., Any], _popen: Any, args: Args, kwargs: Kwargs) -> Any:
    """Pickle a `Process` object with the context, and start the process."""
    process = args[0] if args else kwargs.get("process_obj")
    try:
        context = running_tasks.process_context() if _is_pool_worker(process) else running_tasks.current_context()
        packed = None if context is None else pack(context)
        if packed is not None:
            process.__dict__[ATTRIBUTE] = packed
    except Exception as error:
        record_fault(error)
    try:
        return wrapped(*args, **kwargs)
    finally:
        getattr(process, "__dict__", {}).pop(ATTRIBUTE, None)


def _submit(wrapped: Callable[..., Any], _pool: Any, args: Args, kwargs: Kwargs) -> Any:
    """Submit a function to a pool, with the context."""
    from ckpt_observe.instrument.carrying import carry_to_pool  # noqa: PLC0415 - imports wrapt

    if args:
        args = (carry_to_pool(args[0]), *args[1:])
    elif "func" in kwargs:
        kwargs = {**kwargs, "func": carry_to_pool(kwargs["func"])}
    return wrapped(*args, **kwargs)


_POOL: Final = "multiprocessing.pool"
_CHILD: Final = "the context of a child process"
_WORK: Final = "the context of a function that is submitted to a pool"
TARGETS: Final = (
    Target("multiprocessing.popen_spawn_posix", "Popen._launch", _launch, why=_CHILD),
    Target("multiprocessing.popen_forkserver", "Popen._launch", _launch, why=_CHILD),
    Target("concurrent.futures.process", "ProcessPoolExecutor.submit", _submit, why=_WORK),
    *(Target(_POOL, f"Pool.{method}", _submit, why=_WORK) for method in ("apply_async", "_map_async", "imap", "imap_unordered")),
)


class ProcessInstrumentor(Instrumentor):
    """Patches the standard library where it starts processes. It records nothing itself."""

    name = "multiprocessing"
    library = "multiprocessing"

    def targets(self) -> Sequence[Target]:
        return TARGETS

    def instrument(self) -> None:
        """Carry the context to children, and apply the one that this process was started with."""
        super().instrument()
        context = _take_context()
        if context is not None:
            running_tasks.set_process_context(context)
        elif SPAWN_ARGUMENT in sys.orig_argv and running_tasks.process_context() is None:  # its `Process` object is not unpickled yet
            running_tasks.set_process_context(None, _take_context)
        when_imported("multiprocessing.util", _watch_forks)


def _take_context() -> Context | None:
    """Return the context that the `Process` object of this process was pickled with, and remove it; None if there is none."""
    module = sys.modules.get("multiprocessing.process")
    try:
        packed = None if module is None else vars(module.current_process()).pop(ATTRIBUTE, None)
        return None if packed is None else unpack(packed)
    except Exception as error:
        record_fault(error)
        return None


_is_watching = False


def _watch_forks(util: Any) -> None:
    """Call `_adopt_context` in each forked child, and in each child of a fork server, before its target runs."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        util.register_after_fork(_adopt_context, lambda adopt: adopt())


def _adopt_context() -> None:
    context = _take_context()
    if context is not None:
        running_tasks.set_process_context(context)
    elif recorder.on and _is_pool_worker(sys.modules["multiprocessing.process"].current_process()):
        running_tasks.leave_context_of_fork()


def _is_pool_worker(process: Any) -> bool:
    target = getattr(process, "_target", None)
    return (getattr(target, "__module__", ""), getattr(target, "__name__", "")) in _POOL_WORKERS
