"""Observes Accelerate: `Accelerator.save_state` and `Accelerator.load_state`.

A checkpoint is a directory with the models, optimizers, schedulers, samplers, random generators and registered objects. Accelerate ignores
an error of the random generators; it is recorded as an altered key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_paths import CheckpointDetails, describe_checkpoint, explain_missing_file
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryCall, LibraryOperation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.torch_state import APPLY_TARGETS, FILE_ERRORS, explain_value_error
from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import ignore_errors

SYSTEM: Final = "accelerate"
_RANDOM_STATES: Final = "random_states"
_CHECKPOINTS: Final = "checkpoints"
"""The directory of checkpoints with automatic names."""


def _explain_value_error(error: ValueError) -> str | None:
    """By its message: the checkpoint exists or does not, an argument is missing, or the state does not fit."""
    message = str(error)
    if "folder does not exist" in message:
        return "not_found.checkpoint"
    if "already exists" in message:
        return "conflict.exists"
    return "configuration.invalid" if "No input_dir provided" in message else explain_value_error(error) or "serialization.malformed"


def _explain_runtime_error(error: RuntimeError) -> str | None:
    """By its message: other objects are registered than were saved, or as for PyTorch."""
    is_changed = "does not match the number of registered objects" in str(error)
    return "compatibility.changed_program" if is_changed else FILE_ERRORS["builtins.RuntimeError"](error)  # type: ignore[operator]


def _explain_missing_file(error: FileNotFoundError) -> str:
    """By its path: the directory of all checkpoints is missing, or a file of a checkpoint is."""
    is_directory = os.path.basename(os.fspath(error.filename or "")) == _CHECKPOINTS
    return "not_found.checkpoint" if is_directory else explain_missing_file(error)


_SAVE_ERRORS: Final[ErrorCodes] = {**FILE_ERRORS, "builtins.ValueError": _explain_value_error}
_LOAD_ERRORS: Final[ErrorCodes] = {
    **FILE_ERRORS,
    "builtins.ValueError": _explain_value_error,
    "builtins.RuntimeError": _explain_runtime_error,
    "builtins.FileNotFoundError": _explain_missing_file,
    **dict.fromkeys(("builtins.KeyError", "builtins.TypeError", "builtins.AttributeError"), "serialization.malformed"),
}


def _describe_save(accelerator: Any, arguments: Arguments) -> dict[str, Any]:
    path, step = arguments.get("output_dir"), None
    if accelerator.project_configuration.automatic_checkpoint_naming:
        step = accelerator.save_iteration
        path = os.path.join(accelerator.project_dir, _CHECKPOINTS, f"checkpoint_{step}")
    return {
        **describe_checkpoint(SYSTEM, path),
        names.SAVER: type(accelerator).__name__,
        names.STEP: step,
        names.FORMAT: "safetensors" if arguments.get("safe_serialization", True) else "pickle",
    }


def _prepare_save(operation: LibraryOperation, accelerator: Any, _arguments: Arguments) -> None:
    operation.details = CheckpointDetails(is_writer=accelerator.is_main_process)


def _describe_load(accelerator: Any, arguments: Arguments) -> dict[str, Any]:
    path, step, location = arguments.get("input_dir"), None, None
    if path is None and accelerator.project_configuration.automatic_checkpoint_naming:
        location = os.path.join(accelerator.project_dir, _CHECKPOINTS)
        path, step = _last_checkpoint(location)
    path = os.path.expanduser(path) if path is not None else None
    return {**describe_checkpoint(SYSTEM, path, location), names.SAVER: type(accelerator).__name__, names.STEP: step}


def _last_checkpoint(directory: str) -> tuple[str | None, int | None]:
    """Return the path and the number of the last checkpoint with an automatic name. Accelerate chooses it in the same way."""
    steps: dict[int, str] = {}
    with ignore_errors(OSError):  # Accelerate fails next, which is recorded
        steps = {int(digits): name for name in os.listdir(directory) if (digits := name.rpartition("_")[2]).isdigit()}
    return (os.path.join(directory, steps[max(steps)]), max(steps)) if steps else (None, None)


def _prepare_load(operation: LibraryOperation, _accelerator: Any, _arguments: Arguments) -> None:
    operation.details = CheckpointDetails()


def _record_read_error(operation: LibraryOperation, args: Args, _kwargs: Kwargs, _error: Exception) -> None:
    """Remember that the random generators could not be loaded. Other errors end the operation."""
    if args and os.path.basename(args[0]).startswith(_RANDOM_STATES):
        operation.details.altered.add(_RANDOM_STATES)


_WRITE: Final = SummedPhase(SYSTEM, "write")
_READ: Final = SummedPhase(SYSTEM, "read", record_error=_record_read_error)
TARGETS: Final = (
    Target(
        "accelerate.accelerator", "Accelerator.save_state",
        LibraryCall(
            SYSTEM, "save", _describe_save, before_end=CheckpointDetails.record, error_codes=_SAVE_ERRORS, prepare=_prepare_save
        ),
    ),
    Target(
        "accelerate.accelerator", "Accelerator.load_state",
        LibraryCall(
            SYSTEM, "restore", _describe_load, before_end=CheckpointDetails.record, error_codes=_LOAD_ERRORS, prepare=_prepare_load
        ),
    ),
    Target("accelerate.accelerator", "Accelerator.get_state_dict", SummedPhase(SYSTEM, "stage"), required=False),
    Target("accelerate.accelerator", "save_accelerator_state", _WRITE),
    Target("accelerate.accelerator", "save_custom_state", _WRITE),
    Target("accelerate.accelerator", "load_custom_state", _READ),
    Target("accelerate.checkpointing", "load", _READ),
    Target("accelerate.checkpointing", "load_model", _READ),
    *APPLY_TARGETS,
)  # fmt: skip


class AccelerateInstrumentor(Instrumentor):
    """Observes checkpoints of `Accelerator.save_state` and `Accelerator.load_state`."""

    name = SYSTEM
    library = "accelerate"
    package = "accelerate"
    supported = "accelerate>=1.15,<2"

    def targets(self) -> Sequence[Target]:
        return TARGETS
