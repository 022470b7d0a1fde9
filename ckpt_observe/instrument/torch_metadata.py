"""Compares a load of a distributed checkpoint of torch with what was saved, according to the metadata of the checkpoint itself.

torch loads into tensors that the program provides. It raises an exception if their shapes differ, converts their types silently, and leaves
keys as they are that the checkpoint or the program does not have, if the program accepts that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckpt_observe.instrument.library_call import current_library_operation
from ckpt_observe.instrument.tensors import path_name
from ckpt_observe.instrument.torch_files import DISTRIBUTED
from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record.guard import record_fault
from ckpt_observe.semconv import attributes as names
from ckpt_observe.tensor_summary import Tensor, TensorSummary, tensor_type


def compare_load(wrapped: Callable[..., Any], planner: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrap `DefaultLoadPlanner.create_local_plan`, after which the planner knows both sides."""
    plan = wrapped(*args, **kwargs)
    try:
        operation = current_library_operation(DISTRIBUTED)
        if operation is not None:
            has_one_rank = (operation.attribute(names.WORLD_SIZE) or 1) == 1
            differences = compare_with_metadata(planner.state_dict, planner.metadata.state_dict_metadata, has_one_rank=has_one_rank)
            operation.set({names.COMPARED: True, **differences})
    except Exception as error:
        record_fault(error)
    return plan


def compare_with_metadata(state: Mapping[str, Any], metadata: Mapping[str, Any], *, has_one_rank: bool) -> dict[str, Any]:
    """Return the attributes that name the keys of a flat state that differ from the metadata.

    A program may load only a part of a checkpoint. Saved keys that it does not ask for count as missing only if it also asks for keys of
    the same top-level key that were not saved: then they were probably renamed. With several ranks, others may have what this one lacks.
    """
    loaded = [_tensor(key, "") for key in state if key not in metadata]
    renamed = {key.partition(".")[0] for key in state if key not in metadata}
    saved = []
    for key, entry in metadata.items():
        if key in state:
            saved.append(_tensor(key, _type(getattr(entry, "properties", None), entry)))
            loaded.append(_tensor(key, _type(state[key], entry)))
        elif has_one_rank and key.partition(".")[0] in renamed:
            saved.append(_tensor(key, ""))
    return TensorSummary.of(saved).compare(TensorSummary.of(loaded))


def _tensor(key: str, type: str) -> Tensor:
    return Tensor(key, path_name((key,)), type)


def _type(tensor: Any, entry: Any) -> str:
    """Return data type and shape; empty for another object. Shapes are equal: else torch raises an exception."""
    size, dtype = getattr(entry, "size", None), getattr(tensor, "dtype", None)
    return "" if size is None or dtype is None else tensor_type(dtype, size)
