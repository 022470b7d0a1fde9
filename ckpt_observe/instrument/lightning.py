"""Observes Lightning: checkpoints of a Trainer and of Fabric, and the run that continues from one.

Every `CheckpointIO` is a phase of the operation. With `AsyncCheckpointIO` the operation outlives its call: it ends when the thread of the
plugin has written the file, with the error of that thread, which Lightning raises only at a later save.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_paths import CheckpointDetails, absolute_path, describe_checkpoint
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.removed_checkpoint import record_freed, remember_size
from ckpt_observe.instrument.runs import RunCall
from ckpt_observe.instrument.split_calls import EnclosingCall, PartCall
from ckpt_observe.instrument.targets import Family, Target, WrapperFactory
from ckpt_observe.instrument.tensors import describe_tensors
from ckpt_observe.instrument.thread_handover import ThreadHandover
from ckpt_observe.instrument.torch_state import APPLY_TARGETS, FILE_ERRORS, explain_value_error
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.phase import Sizes
from ckpt_observe.semconv import attributes as names

SYSTEM: Final = "lightning"


def _explain_missing_file(error: FileNotFoundError) -> str:
    """The file of the checkpoint does not exist."""
    return "not_found.checkpoint" if error.filename is None or str(error.filename).endswith(".ckpt") else "not_found.path"


def _explain_value_error(error: ValueError) -> str:
    """By its message: the state does not fit the optimizer, or the file is not a checkpoint."""
    return explain_value_error(error) or "serialization.malformed"


def _explain_key_error(error: KeyError) -> str:
    """By its message: the file was saved with `save_weights_only`, or is not a checkpoint of Lightning."""
    return "compatibility.changed_program" if "save_weights_only" in str(error) else "serialization.malformed"


_LOAD_ERRORS: Final[ErrorCodes] = {
    **FILE_ERRORS,
    "builtins.FileNotFoundError": _explain_missing_file,
    "builtins.ValueError": _explain_value_error,
    "builtins.KeyError": _explain_key_error,
    "builtins.TypeError": "serialization.malformed",
    "builtins.AttributeError": "serialization.malformed",
}


# Attributes


def _describe_save(trainer: Any, arguments: Arguments) -> dict[str, Any]:
    checkpoint_io = getattr(trainer.strategy, "checkpoint_io", None)
    return {
        **describe_checkpoint(SYSTEM, arguments["filepath"]),
        names.SAVER: type(checkpoint_io).__name__,
        names.STEP: trainer.global_step,
        names.FORMAT: "torch",
    }


def _prepare_save(operation: LibraryOperation, trainer: Any, _arguments: Arguments) -> None:
    operation.details = CheckpointDetails(is_writer=trainer.is_global_zero)


def _describe_restore(_connector: Any, arguments: Arguments) -> dict[str, Any] | None:
    path = arguments.get("checkpoint_path")
    return {**describe_checkpoint(SYSTEM, path), names.FORMAT: "torch"} if path else None


def _prepare_load(operation: LibraryOperation, _instance: Any, _arguments: Arguments) -> None:
    operation.details = CheckpointDetails(compares_keys=True)


def _describe_model(_module: Any, arguments: Arguments) -> dict[str, Any]:
    path = next((value for value in arguments.values() if isinstance(value, str | os.PathLike)), None)  # the first argument is a class
    return {**describe_checkpoint(SYSTEM, path), names.FORMAT: "torch"}


def _measure_loaded(operation: LibraryOperation, _args: Args, _kwargs: Kwargs, checkpoint: Any) -> Sizes:
    step = checkpoint.get("global_step") if isinstance(checkpoint, dict) else None
    operation.set({names.STEP: step if isinstance(step, int) else None})
    return None, None


def _describe_fabric(_fabric: Any, arguments: Arguments) -> dict[str, Any]:
    state = arguments.get("state")
    step = state.get("step") if isinstance(state, dict) else None
    return {
        **describe_checkpoint(SYSTEM, arguments["path"]),
        names.SAVER: "Fabric",
        names.STEP: step if isinstance(step, int) else None,
        names.FORMAT: "torch",
    }


def _describe_removal(checkpoint_io: Any, arguments: Arguments) -> dict[str, Any]:
    return {**describe_checkpoint(SYSTEM, arguments["path"]), names.SAVER: type(checkpoint_io).__name__, names.RETENTION: True}


def _describe_run(trainer: Any, args: Args, kwargs: Kwargs) -> dict[str, Any] | None:
    """A run that trains, or that uses a checkpoint. Its directory is its id, unless that is where the program was started."""
    model, path = args[0] if args else kwargs.get("model"), args[1] if len(args) > 1 else kwargs.get("ckpt_path")
    if trainer.state.fn != "fit" and path is None:
        return None
    directory = absolute_path(trainer.default_root_dir)
    run = {names.TASK_NAME: type(model).__name__}
    return run if directory == os.getcwd() else {**run, names.TASK_ID: directory}


# Async saves

_ASYNC_MODULES: Final = ("lightning.pytorch.plugins.io.async_plugin", "pytorch_lightning.plugins.io.async_plugin")
_HANDOVER: Final = ThreadHandover(lambda _io, args, kwargs: _path(args, kwargs), lambda _io, args, kwargs: _path(args, kwargs))


def _path(args: Args, kwargs: Kwargs) -> object:
    """Return the path of a save: the object that the plugin passes on to its thread."""
    return args[1] if len(args) > 1 else kwargs.get("path")


def _describe_state(operation: LibraryOperation, args: Args, kwargs: Kwargs, _result: Any) -> Sizes:
    operation.set(describe_tensors(args[0] if args else kwargs["checkpoint"]))
    return None, None


def _is_async(kind: type) -> bool:
    """Return whether a plugin is an `AsyncCheckpointIO`, of either package. Others may have threads, too, such as for uploads."""
    return any(base.__name__ == "AsyncCheckpointIO" and base.__module__ in _ASYNC_MODULES for base in kind.__mro__)


class _SaveFile:
    """The row of `CheckpointIO.save_checkpoint`: a phase of the save, in the thread of an asynchronous plugin its last part.

    A subclass of `AsyncCheckpointIO` may write in the call instead. Then the save ends with its call.
    """

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        stage = SummedPhase(SYSTEM, "stage").wrapper_for(original, declared)
        write = SummedPhase(SYSTEM, "write", _describe_state).wrapper_for(original, declared)

        def hand_over(wrapped: Callable[..., Any], checkpoint_io: Any, args: Args, kwargs: Kwargs) -> Any:
            operation = current_library_operation(SYSTEM)
            if operation is None or operation.completion is not None:  # an override has handed it over, and calls super()
                return wrapped(*args, **kwargs)
            try:
                operation.outlive_call()
            except Exception as error:
                record_fault(error)
            return _HANDOVER.hand_over(lambda *a, **k: stage(wrapped, checkpoint_io, a, k), checkpoint_io, args, kwargs)

        def end_with_call(operation: LibraryOperation, checkpoint_io: Any, args: Args, kwargs: Kwargs) -> None:
            try:
                if operation.completion is not None and _HANDOVER.withdraw(checkpoint_io, args, kwargs):
                    operation.end_with_call()
            except Exception as error:
                record_fault(error)

        def write_and_complete(wrapped: Callable[..., Any], checkpoint_io: Any, args: Args, kwargs: Kwargs) -> Any:
            operation = current_library_operation(SYSTEM)
            try:
                result = write(wrapped, checkpoint_io, args, kwargs)
            except BaseException as error:
                if operation is not None:
                    operation.complete(error)
                raise
            if operation is not None:
                operation.complete()
            return result

        def call(wrapped: Callable[..., Any], checkpoint_io: Any, args: Args, kwargs: Kwargs) -> Any:
            if _is_async(type(checkpoint_io)):
                return hand_over(wrapped, checkpoint_io, args, kwargs)
            operation = current_library_operation(SYSTEM)
            if operation is not None:
                end_with_call(operation, checkpoint_io, args, kwargs)
                return write(wrapped, checkpoint_io, args, kwargs)
            return _HANDOVER.run(lambda *a, **k: write_and_complete(wrapped, checkpoint_io, a, k), checkpoint_io, args, kwargs)

        return call


# The tables


def _call(
    operation: str,
    describe: Describe,
    prepare: Callable[[LibraryOperation, Any, Arguments], object],
    before_end: Callable[[LibraryOperation, BaseException | None], object] = CheckpointDetails.record,
) -> LibraryCall:
    error_codes = FILE_ERRORS if operation == "save" else _LOAD_ERRORS
    return LibraryCall(SYSTEM, operation, describe, before_end=before_end, error_codes=error_codes, prepare=prepare)


_RESTORE: Final = _call("restore", _describe_restore, _prepare_load)
_APPLY_PART: Final = PartCall(_RESTORE, SummedPhase(SYSTEM, "apply"))
_READ: Final = SummedPhase(SYSTEM, "read", _measure_loaded)
_CONNECTOR_ROWS: Final[dict[str, WrapperFactory]] = {
    "dump_checkpoint": SummedPhase(SYSTEM, "stage"),
    "resume_start": PartCall(_RESTORE, SummedPhase(SYSTEM, "read"), is_first=True),
    "restore_datamodule": _APPLY_PART,
    "restore_model": _APPLY_PART,
    "restore_callbacks": _APPLY_PART,
    "restore_training_state": _APPLY_PART,
    "resume_end": PartCall(_RESTORE, SummedPhase(SYSTEM, "apply"), is_last=True),
}


def _targets(pytorch: str, fabric: str) -> tuple[Target, ...]:
    connector = f"{pytorch}.trainer.connectors.checkpoint_connector"
    return (
        Target(f"{pytorch}.trainer.trainer", "Trainer._run", EnclosingCall(RunCall(SYSTEM, _describe_run)), why="if it trains or loads"),
        Target(f"{pytorch}.trainer.trainer", "Trainer.save_checkpoint", _call("save", _describe_save, _prepare_save)),
        *(Target(connector, f"_CheckpointConnector.{method}", row) for method, row in _CONNECTOR_ROWS.items()),
        Target(f"{pytorch}.core.module", "_load_from_checkpoint", _call("load", _describe_model, _prepare_load)),
        Target(f"{pytorch}.core.saving", "pl_load", _READ),
        Target(f"{fabric}.fabric", "Fabric.save", _call("save", _describe_fabric, _prepare_save)),
        Target(f"{fabric}.fabric", "Fabric.load", _call("restore", _describe_fabric, _prepare_load)),
        *APPLY_TARGETS,
    )


def _checkpoint_ios(fabric: str) -> Family:
    return Family(
        f"{fabric}.plugins.io.checkpoint_io",
        "CheckpointIO",
        {
            "save_checkpoint": _SaveFile(),
            "load_checkpoint": _READ,
            "remove_checkpoint": _call("delete", _describe_removal, remember_size, record_freed),
        },
        why="phase `write`; with `AsyncCheckpointIO`, `stage` and then `write` in its thread",
    )


class LightningInstrumentor(Instrumentor):
    """Observes checkpoints and runs of Lightning's Trainer, and checkpoints of Fabric."""

    name = SYSTEM
    library = "lightning"
    package = "lightning"
    supported = "lightning>=2.6,<3"

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def families(self) -> Sequence[Family]:
        return _FAMILIES


_TARGETS: Final = _targets("lightning.pytorch", "lightning.fabric")
_FAMILIES: Final = (_checkpoint_ios("lightning.fabric"),)


class PyTorchLightningInstrumentor(LightningInstrumentor):
    """Observes the same in `pytorch_lightning` and `lightning_fabric`, which have classes of their own."""

    name = "pytorch-lightning"
    library = "pytorch_lightning"
    package = "pytorch-lightning"
    supported = "pytorch-lightning>=2.6,<3"

    def targets(self) -> Sequence[Target]:
        return _STANDALONE_TARGETS

    def families(self) -> Sequence[Family]:
        return _STANDALONE_FAMILIES


_STANDALONE_TARGETS: Final = _targets("pytorch_lightning", "lightning_fabric")
_STANDALONE_FAMILIES: Final = (_checkpoint_ios("lightning_fabric"),)
