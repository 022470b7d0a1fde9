"""Observes Keras 3: models and weights that are saved and loaded, and the backups of a run and the run that continues from one.

`ModelCheckpoint` saves with the functions that programs call, too. `BackupAndRestore` writes a directory, so its save and its restore are
operations in which these functions are phases. `OrbaxCheckpoint` saves with Orbax, which has a table of its own.

All rows of functions wait for `keras` itself: a row that is patched when the module of the function is imported would be copied into
`keras.saving` by that import.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_file import LOST_FILE, CheckpointFile
from ckpt_observe.instrument.checkpoint_paths import absolute_path, describe_checkpoint, file_sizes
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.keras_errors import LOAD_ERRORS, SAVE_ERRORS, is_from_newer_version
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import OperationOrPhase, SummedPhase
from ckpt_observe.instrument.removed_checkpoint import record_freed, remember_size
from ckpt_observe.instrument.runs import RunCall
from ckpt_observe.instrument.saver_attributes import altered_keys
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.tensors import describe_tensors
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import ignore_errors

SYSTEM: Final = "keras"
_SHARDED: Final = ".weights.json"


class _Checkpoint:
    """What is remembered about the checkpoint of an operation until it ends."""

    __slots__ = ("altered", "file", "model")

    def __init__(self, model: Any, file: Any = None) -> None:
        self.model = model
        """The model that is saved or gets the weights; None until `load_model` has made it."""
        self.file = CheckpointFile(file)
        """The file that a failed save may destroy."""
        self.altered: set[str] = set()
        """Layers that `load_weights(skip_mismatch=True)` left as they were."""


def _step(model: Any) -> int | None:
    """Return how many batches the model has been trained with."""
    with ignore_errors(Exception):  # not compiled, or an optimizer of another library
        return int(model.optimizer.iterations)
    return None


def _tensors(model: Any) -> dict[str, Any]:
    """Return the attributes about the variables of a model and of its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    variables = {"model": getattr(model, "variables", ()), "optimizer": getattr(optimizer, "variables", ())}
    return describe_tensors({key: {each.path: each.value for each in values} for key, values in variables.items()})


def _all_files(path: str) -> dict[str, int]:
    """Return the sizes of the files of a checkpoint: of a sharded one, the map of its shards and the shards that it names."""
    sizes = file_sizes(path)
    if path.endswith(_SHARDED):
        with open(path, encoding="utf-8") as file:
            shards = json.load(file)["weight_map"].values()
        for name in {name for each in shards for name in ([each] if isinstance(each, str) else each)}:
            sizes |= file_sizes(os.path.join(os.path.dirname(path), name))
    return sizes


# Files


def _describe_file(model: Any, filepath: Any, *, is_sharded: bool = False) -> dict[str, Any]:
    if is_sharded and isinstance(filepath, str | os.PathLike):  # Keras changes the extension of the map
        filepath = os.path.splitext(os.fspath(filepath))[0] + ".json"
    path = absolute_path(filepath) or ""
    suffix = path.rpartition(".")[2]
    return {
        **describe_checkpoint(SYSTEM, path or None),
        names.STEP: _step(model),
        names.FORMAT: "hdf5" if suffix in ("h5", "hdf5", "json") else "keras",
    }


def _describe_save(_module: Any, arguments: Arguments) -> dict[str, Any]:
    return _describe_file(arguments["model"], arguments["filepath"], is_sharded=arguments.get("max_shard_size") is not None)


def _describe_load(_module: Any, arguments: Arguments) -> dict[str, Any]:
    return _describe_file(None, arguments["filepath"])


def _prepare_save(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
    operation.details = _Checkpoint(arguments["model"], arguments["filepath"])
    operation.set(_tensors(arguments["model"]))


def _prepare_load(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
    operation.details = _Checkpoint(arguments.get("model"))


def _remember_model(operation: LibraryOperation, model: Any) -> None:
    if model is not None:
        operation.details.model = model


def _record_save(operation: LibraryOperation, error: BaseException | None) -> None:
    """Set the size, or what a failed save did to the file. A directory is changed file by file."""
    path = operation.attribute(names.ID)
    if error is not None:
        file: CheckpointFile = operation.details.file
        if file.has_changed() and not os.path.isdir(file.path or ""):
            operation.set({names.ERROR_IMPACT: LOST_FILE})
    elif path is not None and "://" not in path:
        operation.set_trusted({names.SIZE_STORED: sum(_all_files(path).values()) or None})


def _record_load(operation: LibraryOperation, error: BaseException | None) -> None:
    """Set what was loaded, or that the checkpoint is from a newer version, of which Keras says only that it does not know a class."""
    path, details = operation.attribute(names.ID), operation.details
    is_local = path is not None and "://" not in path
    if error is None:
        operation.set({names.STEP: _step(details.model), names.ALTERED_KEYS: altered_keys(details.altered), **_tensors(details.model)})
        if is_local:
            operation.set_trusted({names.SIZE_STORED: sum(_all_files(path).values()) or None})
    elif is_local and is_from_newer_version(path, error):
        operation.failure_code = "compatibility.newer_version"


def _remember_altered(wrapped: Callable[..., Any], _module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrap `_raise_loading_failure(error_msgs, warn_only=False)`, which gets the objects that could not be loaded."""
    try:
        operation, errors = current_library_operation(SYSTEM), args[0] if args else kwargs["error_msgs"]
        if operation is not None:
            operation.details.altered |= {str(getattr(each, "name", type(each).__name__)) for each, _ in errors.values()}
    except Exception as error:
        record_fault(error)
    return wrapped(*args, **kwargs)


class _FileCall(OperationOrPhase):
    """An operation that is one phase, so that it has a phase wherever it fails. Inside any operation of Keras, only the phase."""

    __slots__ = ()

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        call_operation = self.operation.wrapper_for(original, declared)
        call_phase = self.phase.wrapper_for(original, declared)

        def wrapper(wrapped: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
            if current_library_operation(SYSTEM) is not None:
                return call_phase(wrapped, module, args, kwargs)
            return call_operation(lambda *a, **k: call_phase(wrapped, module, a, k), module, args, kwargs)

        return wrapper


# Backups of a run


def _describe_backup(callback: Any) -> dict[str, Any]:
    return {**describe_checkpoint(SYSTEM, callback.backup_dir), names.SAVER: type(callback).__name__, names.FORMAT: "hdf5"}


def _describe_backup_save(callback: Any, _arguments: Arguments) -> dict[str, Any]:
    return {**_describe_backup(callback), names.STEP: _step(callback.model)}


def _describe_restore(callback: Any, _arguments: Arguments) -> dict[str, Any] | None:
    """A run that begins has nothing to restore. Only a local backup can be looked for without a delay."""
    files = callback._weights_path, callback._training_metadata_path
    return _describe_backup(callback) if any(os.path.exists(path) for path in files) else None


def _describe_removal(callback: Any, _arguments: Arguments) -> dict[str, Any] | None:
    return _describe_backup(callback) if callback.delete_checkpoint and os.path.isdir(callback.backup_dir) else None


def _prepare_backup(operation: LibraryOperation, callback: Any, _arguments: Arguments) -> None:
    operation.details = _Checkpoint(callback.model, None if callback.double_checkpoint else callback._weights_path)
    operation.set(_tensors(callback.model))


def _prepare_restore(operation: LibraryOperation, callback: Any, _arguments: Arguments) -> None:
    operation.details = _Checkpoint(callback.model)


# Runs

_DIRECTORIES: Final = {"BackupAndRestore": "backup_dir", "ModelCheckpoint": "filepath", "OrbaxCheckpoint": "directory"}
"""The callbacks that save checkpoints, and their attribute that says where."""


def _describe_run(model: Any, args: Args, kwargs: Kwargs) -> dict[str, Any] | None:
    """A run with a callback that saves checkpoints. Their directory is its id, unless that is where the program was started."""
    directories = [*_directories(kwargs.get("callbacks", args[5] if len(args) > 5 else None))]
    if not directories:
        return None
    run = {names.TASK_NAME: type(model).__name__}
    return run if directories[0] in (None, os.getcwd()) else {**run, names.TASK_ID: directories[0]}


def _directories(callbacks: Any) -> Iterator[str | None]:
    callbacks = getattr(callbacks, "callbacks", callbacks)
    for callback in callbacks if isinstance(callbacks, list | tuple) else (callbacks,):
        for base in type(callback).__mro__:
            if base.__name__ in _DIRECTORIES and base.__module__.startswith("keras."):
                path = absolute_path(getattr(callback, _DIRECTORIES[base.__name__], None))
                yield os.path.dirname(path) if path is not None and base.__name__ == "ModelCheckpoint" else path


# The tables


def _choose_save_phase(_operation: LibraryOperation, args: Args) -> str:
    """Variables are copied to a file in memory, which becomes a part of a `.keras` file, or written to a file."""
    return "stage" if len(args) > 1 and getattr(args[1], "archive", None) is not None else "write"


def _save(describe: Describe, prepare: Callable[[LibraryOperation, Any, Arguments], object]) -> LibraryCall:
    return LibraryCall(
        SYSTEM, "save", describe, before_end=_record_save, inside="phase", error_codes=SAVE_ERRORS, prepare=prepare
    )  # fmt: skip


def _load(operation: str, describe: Describe, prepare: Callable[[LibraryOperation, Any, Arguments], object]) -> LibraryCall:
    return LibraryCall(SYSTEM, operation, describe, _remember_model, _record_load, None, "phase", LOAD_ERRORS, prepare)


_WRITE: Final = SummedPhase(SYSTEM, "write")
_READ: Final = SummedPhase(SYSTEM, "read")
_SAVE_FILE: Final = _FileCall(_save(_describe_save, _prepare_save), _WRITE)
_LOAD_FILE: Final = _FileCall(_load("load", _describe_load, _prepare_load), _READ)
_FUNCTIONS: Final = {"save_model": _SAVE_FILE, "save_weights": _SAVE_FILE, "load_model": _LOAD_FILE, "load_weights": _LOAD_FILE}
_MODULES: Final = {
    "src.saving.saving_api": tuple(_FUNCTIONS),
    "saving": tuple(_FUNCTIONS),
    "models": ("save_model", "load_model"),
}
"""The modules that have the functions, or another name for them."""
_BACKUP: Final = "src.callbacks.backup_and_restore.BackupAndRestore"
_LIBRARY: Final = "src.saving.saving_lib"
TARGETS: Final = (
    *(Target("keras", f"{module}.{name}", _FUNCTIONS[name]) for module, functions in _MODULES.items() for name in functions),
    Target("keras", "Model.fit", RunCall(SYSTEM, _describe_run), why="if a callback saves checkpoints"),
    Target("keras", f"{_BACKUP}._save_model", _save(_describe_backup_save, _prepare_backup)),
    Target("keras", f"{_BACKUP}._load_model", _load("restore", _describe_restore, _prepare_restore), why="if there is a backup"),
    Target(
        "keras",
        f"{_BACKUP}.on_train_end",
        LibraryCall(SYSTEM, "delete", _describe_removal, before_end=record_freed, prepare=remember_size),
        why="if it removes the backup",
    ),
    Target("keras", f"{_LIBRARY}._serialize_model_as_json", SummedPhase(SYSTEM, "serialize"), required=False),
    Target("keras", f"{_LIBRARY}._save_state", SummedPhase(SYSTEM, _choose_save_phase), required=False, why="`stage` or `write`"),
    Target("keras", f"{_LIBRARY}._model_from_config", SummedPhase(SYSTEM, "deserialize"), required=False),
    Target("keras", f"{_LIBRARY}._load_state", SummedPhase(SYSTEM, "apply"), required=False),
    Target(
        "keras",
        f"{_LIBRARY}._raise_loading_failure",
        _remember_altered,
        required=False,
        why="names of layers that `load_weights(skip_mismatch=True)` leaves as they are",
    ),
)


class KerasInstrumentor(Instrumentor):
    """Observes saves and loads of models and weights, and runs of `fit` with `ModelCheckpoint`, `BackupAndRestore` or `OrbaxCheckpoint`."""

    name = SYSTEM
    library = "keras"
    package = "keras"
    supported = "keras>=3.15,<4"

    def targets(self) -> Sequence[Target]:
        return TARGETS
