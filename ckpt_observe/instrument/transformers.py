"""Observes the Trainer of Transformers: checkpoints of a training run, and the run that continues from one.

A checkpoint is a directory with the model, the optimizer, the scheduler, the random generators and, written last, the state of the Trainer.
One save is one operation, whatever writes its files. A run is restored by several calls, which are one operation, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_paths import (
    CheckpointDetails,
    absolute_path,
    describe_checkpoint,
    explain_json_error,
    explain_missing_file,
    file_sizes,
)
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import OperationOrPhase, SummedPhase
from ckpt_observe.instrument.runs import RunCall
from ckpt_observe.instrument.split_calls import EnclosingCall, PartCall
from ckpt_observe.instrument.targets import Family, Target
from ckpt_observe.instrument.torch_state import APPLY_TARGETS, FILE_ERRORS, explain_value_error
from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.phase import Sizes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import ignore_errors

SYSTEM: Final = "transformers"
_STEP: Final = re.compile(r"checkpoint-(\d+)$")
_FILES: Final = ("optimizer", "scheduler", "rng_state")
"""How the names of the files begin that a Trainer writes after the model. If they are missing, it continues without a warning."""


def _explain_value_error(error: ValueError) -> str | None:
    """By its message: the checkpoint is missing or incomplete, or does not fit the optimizer or the way of training."""
    message = str(error)
    directory = message.partition("Can't find a valid checkpoint at ")[2]
    if directory:
        return "integrity.incomplete" if os.path.isdir(directory) else "not_found.checkpoint"
    if "only supported when using PyTorch FSDP" in message:
        return "configuration.unsupported"
    return explain_value_error(error) or "serialization.malformed"


def _explain_type_error(error: TypeError) -> str:
    """By its message: a newer version has added a field to the state of the Trainer, or the file has other contents."""
    return "compatibility.newer_version" if "unexpected keyword argument" in str(error) else "serialization.malformed"


_LOAD_ERRORS: Final[ErrorCodes] = {
    **FILE_ERRORS,
    "builtins.FileNotFoundError": explain_missing_file,
    "builtins.ValueError": _explain_value_error,
    "json.decoder.JSONDecodeError": explain_json_error,
    "builtins.UnicodeDecodeError": "serialization.malformed",
    "builtins.KeyError": "serialization.malformed",
    "builtins.TypeError": _explain_type_error,
    "builtins.AttributeError": "serialization.malformed",
}


# Saves


def _describe_save(trainer: Any, arguments: Arguments) -> dict[str, Any]:
    trial, step = arguments.get("trial"), trainer.state.global_step
    directory = trainer.args.output_dir if trial is None else trainer._get_output_dir(trial=trial)
    return {**_describe(trainer, os.path.join(directory, f"checkpoint-{step}"), directory), names.STEP: step}


def _describe_model(trainer: Any, arguments: Arguments) -> dict[str, Any]:
    directory = arguments.get("output_dir") or trainer.args.output_dir
    return {**_describe(trainer, directory, directory), names.STEP: trainer.state.global_step, names.REASON: "save_model"}


def _describe(trainer: Any, path: Any, location: Any = None) -> dict[str, Any]:
    return {**describe_checkpoint(SYSTEM, path, location), names.SAVER: type(trainer).__name__, names.FORMAT: "safetensors"}


def _prepare_save(operation: LibraryOperation, trainer: Any, _arguments: Arguments) -> None:
    operation.details = CheckpointDetails(is_writer=trainer.args.should_save)


# Restores


def _describe_restore(trainer: Any, arguments: Arguments) -> dict[str, Any] | None:
    path = arguments.get("resume_from_checkpoint") or arguments.get("checkpoint")
    return None if path is None else {**_describe(trainer, path), names.STEP: _step(path)}


def _step(path: Any) -> int | None:
    match = _STEP.search(absolute_path(path) or "")
    return int(match[1]) if match else None


def _describe_best(trainer: Any, _arguments: Arguments) -> dict[str, Any]:
    path = trainer.state.best_model_checkpoint
    return {**_describe(trainer, path), names.STEP: _step(path), names.REASON: "best_model"}


def _prepare_restore(operation: LibraryOperation, trainer: Any, _arguments: Arguments) -> None:
    has_other_files = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or trainer.args.save_only_model
    operation.details = CheckpointDetails(expected_files=() if has_other_files else _FILES)


def _prepare_load(operation: LibraryOperation, _trainer: Any, _arguments: Arguments) -> None:
    operation.details = CheckpointDetails()


def _measure_state(operation: LibraryOperation, _args: Args, _kwargs: Kwargs, state: Any) -> Sizes:
    operation.set({names.STEP: state.global_step})
    return None, None


def _record_missing_keys(wrapped: Callable[..., Any], trainer: Any, args: Args, kwargs: Kwargs) -> Any:
    """Name the parameters that the checkpoint or the model lacks. Those that the model does not store on purpose are not missing."""
    try:
        operation, result = current_library_operation(SYSTEM), args[0] if args else kwargs["load_result"]
        if operation is not None:
            not_stored = {*(getattr(trainer.model, "_keys_to_ignore_on_save", None) or ())}
            not_stored |= {*(getattr(trainer.model, "all_tied_weights_keys", None) or ())}
            operation.details.altered |= {*result.missing_keys, *result.unexpected_keys} - not_stored
    except Exception as error:
        record_fault(error)
    return wrapped(*args, **kwargs)


# Retention


def _describe_rotation(_module: Any, arguments: Arguments) -> dict[str, Any] | None:
    limit, directory = arguments.get("save_total_limit"), arguments["output_dir"]
    if limit is None or limit <= 0 or len(_checkpoints(directory)) <= limit:
        return None
    return {names.SYSTEM: SYSTEM, names.STORE: "file", names.LOCATION: absolute_path(directory), names.RETENTION: True}


def _checkpoints(directory: Any) -> list[str]:
    with ignore_errors(OSError):
        return [entry.path for entry in os.scandir(directory) if _STEP.match(entry.name) and entry.is_dir()]
    return []


def _remember_checkpoints(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
    operation.details = {path: sum(file_sizes(path).values()) for path in _checkpoints(arguments["output_dir"])}


def _record_removed(operation: LibraryOperation, _error: BaseException | None) -> None:
    freed = [size for path, size in operation.details.items() if not os.path.exists(path)]
    operation.set({names.COUNT: len(freed), names.SIZE_FREED: sum(freed)})


# Runs


def _describe_run(trainer: Any, _args: Args, _kwargs: Kwargs) -> dict[str, Any]:
    return {names.TASK_NAME: type(trainer).__name__, names.TASK_ID: absolute_path(trainer.args.output_dir)}


def _call(operation: str, describe: Describe, prepare: Callable[[LibraryOperation, Any, Arguments], object]) -> LibraryCall:
    error_codes = FILE_ERRORS if operation == "save" else _LOAD_ERRORS
    return LibraryCall(SYSTEM, operation, describe, before_end=CheckpointDetails.record, error_codes=error_codes, prepare=prepare)


_RESTORE: Final = _call("restore", _describe_restore, _prepare_restore)
_ROTATE: Final = LibraryCall(SYSTEM, "prune", _describe_rotation, before_end=_record_removed, prepare=_remember_checkpoints)
_WRITE: Final = SummedPhase(SYSTEM, "write")
_READ: Final = SummedPhase(SYSTEM, "read")
TARGETS: Final = (
    Target("transformers.trainer_callback", "TrainerState.save_to_json", _WRITE),
    Target("transformers.trainer_callback", "TrainerState.load_from_json", PartCall(_RESTORE, SummedPhase(SYSTEM, "read", _measure_state))),
    Target("transformers.trainer", "rotate_checkpoints", _ROTATE, why="if checkpoints are removed because of `save_total_limit`"),
    Target(
        "transformers.trainer",
        "Trainer._issue_warnings_after_load",
        _record_missing_keys,
        required=False,
        why="names of parameters that the checkpoint or the model lacks",
    ),
    *APPLY_TARGETS,
)
TRAINERS: Final = Family(
    "transformers.trainer",
    "Trainer",
    {
        "train": EnclosingCall(RunCall(SYSTEM, _describe_run)),
        "_save_checkpoint": _call("save", _describe_save, _prepare_save),
        "save_model": OperationOrPhase(_call("save", _describe_model, _prepare_save), _WRITE),
        "_save_optimizer_and_scheduler": _WRITE,
        "_save_scaler": _WRITE,
        "_save_rng_state": _WRITE,
        "_load_from_checkpoint": PartCall(_RESTORE, _READ, is_first=True),
        "_load_optimizer_and_scheduler": PartCall(_RESTORE, _READ, is_first=True),
        "_load_scaler": PartCall(_RESTORE, _READ),
        "_load_rng_state": PartCall(_RESTORE, _READ, is_last=True),
        "_load_best_model": _call("load", _describe_best, _prepare_load),
    },
    declared=("train", "_save_checkpoint", "save_model", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state"),
    include_base=True,
)


class TransformersInstrumentor(Instrumentor):
    """Observes checkpoints and runs of the Trainer."""

    name = SYSTEM
    library = "transformers"
    package = "transformers"
    supported = "transformers>=5.22,<6"

    def targets(self) -> Sequence[Target]:
        return TARGETS

    def families(self) -> Sequence[Family]:
        return (TRAINERS,)
