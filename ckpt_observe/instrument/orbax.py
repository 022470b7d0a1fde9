"""Observes Orbax: `CheckpointManager`, and checkpointers that a program uses itself.

A save blocks the caller until the state is copied. Threads of Orbax write the arrays and then commit the directory; the operation ends when
that is done, with the error of that thread. Orbax raises it at the next save, before that one begins: the next save is then `skipped`. A
manager is called at every step, and a call that saves nothing is not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_paths import CheckpointDetails, describe_checkpoint, explain_json_error
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Family, Target, WrapperFactory
from ckpt_observe.instrument.thread_handover import ThreadHandover
from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.semconv import attributes as names

SYSTEM: Final = "orbax"
_CHECKPOINTERS: Final = "orbax.checkpoint._src.checkpointers"
_HANDLERS: Final = "orbax.checkpoint._src.handlers"


# Errors

_MESSAGES: Final = (  # the first ones are TensorStore's, which begin with a status
    ('member "zarr_format": Expected integer', "compatibility.newer_version"),
    ("OUT_OF_RANGE", "integrity.truncated"),
    ("does not match actual length", "integrity.truncated"),
    ("less than minimum length", "integrity.truncated"),
    ("DATA_LOSS", "integrity.malformed"),
    ("NOT_FOUND", "integrity.incomplete"),
    ("PERMISSION_DENIED", "storage.permission"),
    ("RESOURCE_EXHAUSTED", "storage.no_space"),
    ("DEADLINE_EXCEEDED", "timeout.deadline"),
    ("UNAVAILABLE", "unavailable.connection"),
    ("Requested shape", "compatibility.changed_program"),
    ("tree structures do not match", "compatibility.changed_program"),
    ("incomplete", "integrity.incomplete"),
    ("already exists", "conflict.exists"),
    ("Unsupported type", "serialization.unsupported_type"),
    ("should be absolute", "configuration.invalid"),
    ("Must provide `args` for", "configuration.invalid"),
    ("Expected args", "configuration.invalid"),
)

_MISLEADING: Final = "Must provide `args` of type `Composite`"
"""The message of a manager without registered items. It raises this also if there is no checkpoint at all."""


def _explain_value_error(error: ValueError) -> str | None:
    """By its message: a status of TensorStore, or a check of Orbax."""
    message = str(error)
    return next((code for text, code in _MESSAGES if text in message), None)


def _explain_load_error(error: ValueError) -> str | None:
    """As for a save. Other messages are about bytes that cannot be decoded."""
    return _explain_value_error(error) or (None if _MISLEADING in str(error) else "integrity.malformed")


def _explain_missing_file(error: FileNotFoundError) -> str:
    """By its message: the metadata are missing, or the checkpoint is."""
    return "integrity.incomplete" if "etadata" in str(error) else "not_found.checkpoint"


_SAVE_ERRORS: Final[ErrorCodes] = {
    "orbax.checkpoint.checkpoint_manager.StepAlreadyExistsError": "conflict.exists",
    "builtins.ValueError": _explain_value_error,
}
_LOAD_ERRORS: Final[ErrorCodes] = {
    "builtins.ValueError": _explain_load_error,
    "builtins.FileNotFoundError": _explain_missing_file,
    "json.decoder.JSONDecodeError": explain_json_error,
    **dict.fromkeys(("builtins.KeyError", "builtins.TypeError", "builtins.AttributeError"), "serialization.malformed"),
}


# Attributes


def _describe_step(manager: Any, step: Any, directory: Any = None) -> dict[str, Any]:
    directory = manager.directory if directory is None else directory
    path = None if step is None else manager._get_save_directory(step, directory)
    return {**_describe(manager, path, directory), names.STEP: step}


def _describe(instance: Any, path: Any, location: Any = None) -> dict[str, Any]:
    return {**describe_checkpoint(SYSTEM, path, location), names.SAVER: type(instance).__name__}


def _describe_restore(manager: Any, arguments: Arguments) -> dict[str, Any]:
    step = arguments.get("step")
    return _describe_step(manager, manager.latest_step() if step is None else step, arguments.get("directory"))


class _Details(CheckpointDetails):
    """What is remembered about an operation of Orbax."""

    __slots__ = ("earlier_error",)

    def __init__(self) -> None:
        super().__init__()
        self.earlier_error: BaseException | None = None
        """The exception of an earlier save, for which this one waited."""

    @staticmethod
    def prepare(operation: LibraryOperation, _instance: Any, _arguments: Arguments) -> None:
        operation.details = _Details()

    @staticmethod
    def record_wait_error(operation: LibraryOperation, _args: Args, _kwargs: Kwargs, error: Exception) -> None:
        """Remember the error of an earlier save. This one has not begun."""
        operation.details.earlier_error = error

    @staticmethod
    def finish(operation: LibraryOperation, error: BaseException | None) -> None:
        """Set the size, or what the exception does not say: it is that of an earlier save, or the checkpoint does not exist."""
        path = operation.attribute(names.ID)
        if error is not None and error is operation.details.earlier_error:
            operation.failure_code = "skipped"
        elif isinstance(error, ValueError) and _MISLEADING in str(error):
            is_missing = path is not None and "://" not in path and not os.path.exists(path)
            operation.failure_code = "not_found.checkpoint" if is_missing else "configuration.invalid"
        CheckpointDetails.record(operation, error)


# Async saves

_COMMIT: Final = SummedPhase(SYSTEM, "commit")
_WRITE: Final = SummedPhase(SYSTEM, "write")


def _futures(_instance: Any, args: Args, kwargs: Kwargs) -> object:
    """Return the work of a save: the list that Orbax passes on to its thread."""
    return args[1] if len(args) > 1 else kwargs.get("commit_futures")


_HANDOVER: Final = ThreadHandover(_futures, _futures)


def _start_commit(wrapped: Callable[..., Any], manager: Any, args: Args, kwargs: Kwargs) -> Any:
    """Let the operation outlive its call, and hand it over to the thread."""
    try:
        operation = current_library_operation(SYSTEM)
        if operation is not None:
            operation.outlive_call()
    except Exception as error:
        record_fault(error)
    return _HANDOVER.hand_over(wrapped, manager, args, kwargs)


def _commit(wrapped: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Observe the thread that waits for the writes and then commits."""

    def observe(*args: Any, **kwargs: Any) -> Any:
        operation = current_library_operation(SYSTEM)
        if operation is None:
            return wrapped(*args, **kwargs)
        try:
            if len(args) > 2:
                commit, call_commit = args[2], _COMMIT.wrapper_for(args[2])
                args = (*args[:2], lambda: call_commit(commit, None, (), {}), *args[3:])
            result = _WRITE.wrapper_for(wrapped)(wrapped, module, args, kwargs)
        except BaseException as error:
            operation.complete(error)
            raise
        operation.complete()
        return result

    return _HANDOVER.run(observe, module, args, kwargs)


# The tables


def _call(operation: str, describe: Describe, is_nothing: Callable[[Any], bool] | None = None) -> LibraryCall:
    error_codes = _LOAD_ERRORS if operation == "restore" else _SAVE_ERRORS
    return LibraryCall(
        SYSTEM, operation, describe, before_end=_Details.finish, error_codes=error_codes, prepare=_Details.prepare, is_nothing=is_nothing
    )


_SAVE: Final = _call("save", lambda checkpointer, arguments: _describe(checkpointer, arguments["directory"]))
_RESTORE: Final = _call("restore", lambda checkpointer, arguments: _describe(checkpointer, arguments["directory"]))
_WAIT: Final = SummedPhase(SYSTEM, "wait", record_error=_Details.record_wait_error)
_MANAGER_ROWS: Final[dict[str, WrapperFactory]] = {
    "save": _call("save", lambda manager, arguments: _describe_step(manager, arguments["step"]), is_nothing=lambda result: result is False),
    "restore": _call("restore", _describe_restore),
    "delete": _call("delete", lambda manager, arguments: _describe_step(manager, arguments["step"])),
    "wait_until_finished": _WAIT,
}
TARGETS: Final = (
    *(Target("orbax.checkpoint.checkpoint_manager", f"CheckpointManager.{method}", row) for method, row in _MANAGER_ROWS.items()),
    Target(f"{_CHECKPOINTERS}.checkpointer", "Checkpointer.save", _SAVE),
    Target(f"{_CHECKPOINTERS}.checkpointer", "Checkpointer.restore", _RESTORE),
    Target(f"{_CHECKPOINTERS}.async_checkpointer", "AsyncCheckpointer.save", _SAVE),
    Target(f"{_CHECKPOINTERS}.async_checkpointer", "AsyncCheckpointer.restore", _RESTORE),
    Target(f"{_CHECKPOINTERS}.async_checkpointer", "AsyncCheckpointer.wait_until_finished", _WAIT),
    Target(f"{_CHECKPOINTERS}.async_checkpointer", "_AsyncManager.start_async_commit", _start_commit, why="the save goes on in a thread"),
    Target(f"{_CHECKPOINTERS}.async_checkpointer", "_background_wait_for_commit_futures", _commit, why="phases `write` and `commit`"),
)
HANDLERS: Final = Family(
    f"{_HANDLERS}.checkpoint_handler",
    "CheckpointHandler",
    {"save": _WRITE, "async_save": SummedPhase(SYSTEM, "stage"), "restore": SummedPhase(SYSTEM, "read")},
    declared=("save", "restore"),
)


class OrbaxInstrumentor(Instrumentor):
    """Observes Orbax's `CheckpointManager` and checkpointers, with their async saves."""

    name = SYSTEM
    library = "orbax"
    package = "orbax-checkpoint"
    supported = "orbax-checkpoint>=0.12,<0.13"

    def targets(self) -> Sequence[Target]:
        return TARGETS

    def families(self) -> Sequence[Family]:
        return (HANDLERS,)
