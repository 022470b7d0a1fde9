"""What the tables of libraries over PyTorch share: a state that is put into a model or optimizer, and the errors of its files."""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Callable
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_paths import CheckpointDetails
from ckpt_observe.instrument.library_call import LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target, Versions
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.phase import Sizes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO
from ckpt_observe.tensor_summary import dtype_name


def _compare_keys(operation: LibraryOperation, _args: Args, _kwargs: Kwargs, result: Any) -> Sizes:
    """Remember the keys that the model or the checkpoint lacks, if the model accepts that."""
    details = operation.details
    if isinstance(details, CheckpointDetails) and details.compares_keys and result is not None:
        details.altered |= {*result.missing_keys, *result.unexpected_keys}
    return None, None


class _LoadIntoModule:
    """The row of `Module.load_state_dict`: a phase, and the parameters whose data types differ, which torch converts silently."""

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        call = SummedPhase("", "apply", _compare_keys).wrapper_for(original, declared)

        def wrapper(wrapped: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
            result = call(wrapped, module, args, kwargs)
            try:
                operation = current_library_operation("")
                if operation is not None and isinstance(operation.details, CheckpointDetails):
                    _compare_types(operation, module, args[0] if args else kwargs.get("state_dict"))
            except Exception as error:
                record_fault(error)
            return result

        return wrapper


def _compare_types(operation: LibraryOperation, module: Any, state: Any) -> None:
    """Name the parameters and buffers of a module that have another data type than the state that it has loaded."""
    details: CheckpointDetails = operation.details
    dtypes = {name: each.dtype for name, each in itertools.chain(module.named_parameters(), module.named_buffers())}
    for name, value in state.items() if isinstance(state, dict) else ():
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtypes.get(name, dtype) != dtype:
            details.altered.add(name)
            details.altered_types.add(f"{dtype_name(dtype)} -> {dtype_name(dtypes[name])}")
    if details.altered_types:
        operation.set({names.ALTERED_TYPES: sorted(details.altered_types)})


_TORCH: Final = Versions("torch")
APPLY_TARGETS: Final = (
    Target("torch.nn.modules.module", "Module.load_state_dict", _LoadIntoModule(), required=False, versions=_TORCH),
    Target("torch.optim.optimizer", "Optimizer.load_state_dict", SummedPhase("", "apply"), required=False, versions=_TORCH),
)
"""A state that does not fit fails here, and not while its file is read."""


_MESSAGES: Final = (
    ("loading state_dict", "compatibility.changed_program"),
    ("failed finding central directory", "integrity.truncated"),
    ("maximum supported version", "compatibility.newer_version"),
    ("PytorchStreamReader", "integrity.malformed"),
    ("corrupt file", "integrity.malformed"),
    ("archive", "integrity.malformed"),
    ("Parent directory", "not_found.path"),
    ("PytorchStreamWriter", "storage.io"),  # a full disk, say: PyTorch does not pass on the reason
    ("unexpected pos", "storage.io"),
)


def explain_runtime_error(error: RuntimeError) -> str | None:
    """By its message: PyTorch cannot read or write a file, or the state does not fit the model."""
    message = str(error)
    return next((code for text, code in _MESSAGES if text in message), None)


def explain_read_error(error: OSError) -> str | None:
    """EINVAL is a read at an offset that the file does not have: it ends too early."""
    return "integrity.truncated" if error.errno == errno.EINVAL else None


def explain_value_error(error: ValueError) -> str | None:
    """By its message: the state does not fit the optimizer."""
    is_optimizer = "parameter group" in str(error) and "loaded state dict" in str(error)
    return "compatibility.changed_program" if is_optimizer else None


def explain_safetensors_error(error: Exception) -> str:
    """By its message: the file system reports an error, the file ends too early, or it is not such a file."""
    message = str(error)
    number = re.search(r"os error (\d+)", message)
    if number:
        return ERROR_CODES_BY_ERRNO.get(int(number[1]), "storage.io")
    is_truncated = any(text in message for text in ("header too small", "invalid header length", "not fully covered"))
    return "integrity.truncated" if is_truncated else "integrity.malformed"


FILE_ERRORS: Final[ErrorCodes] = {
    "builtins.RuntimeError": explain_runtime_error,
    "builtins.OSError": explain_read_error,
    "safetensors._safetensors_rust.SafetensorError": explain_safetensors_error,
}
"""Exceptions of `torch.save`, `torch.load`, `load_state_dict` and safetensors."""
