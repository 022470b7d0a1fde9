"""Observes distributed checkpoints of torch (DCP): `save`, `load` and `async_save` of `torch.distributed.checkpoint`.

torch logs each step through `_dcp_method_logger`, which it looks up whenever it builds the functions of the steps: there the phases are
found. An async save is written by a thread, and so are the files of a writer with several threads: their work is handed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.context import Context

from ckpt_observe.instrument import torch_ranks
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.tensors import describe_tensors, find_step
from ckpt_observe.instrument.thread_handover import ThreadHandover
from ckpt_observe.instrument.torch_errors import EXCEPTION, explain_failures, failure_attributes
from ckpt_observe.instrument.torch_files import DISTRIBUTED as SYSTEM
from ckpt_observe.instrument.torch_metadata import compare_load
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.semconv import attributes as names

_MODULE: Final = "torch.distributed.checkpoint"
_PHASES: Final = {
    "local_step": "plan",
    "global_step": "plan",
    "stage_state_dict": "stage",
    "maybe_synchronize_staging": "stage",
    "write_data": "write",
    "finish_checkpoint": "commit",
    "read_data": "read",
}
"""The steps of torch, by the names of their functions."""
_STEP_IN_PATH: Final = re.compile(r"(\d+)/*$")


# Operations


def _describe(_module: Any, arguments: Arguments) -> dict[str, Any]:
    storage = arguments.get("storage_writer") or arguments.get("storage_reader")
    id = arguments.get("checkpoint_id") or getattr(storage, "checkpoint_id", None)
    path = os.fspath(id) if isinstance(id, str | os.PathLike) else None
    is_url = path is not None and "://" in path
    state = arguments.get("state_dict")
    step, number = find_step(state), _STEP_IN_PATH.search(path or "")
    return {
        names.SYSTEM: SYSTEM,
        names.FORMAT: "dcp",
        names.STORE: "fsspec" if is_url or "Fsspec" in type(storage).__name__ else "file",
        names.SAVER: type(storage).__name__ if storage is not None else None,
        names.ID: path if path is None or is_url else os.path.abspath(path),
        names.LOCATION: path,
        names.STEP: int(number[1]) if step is None and number else step,
        **torch_ranks.describe_rank(arguments.get("process_group"), no_dist=bool(arguments.get("no_dist"))),
    }


def _prepare(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
    operation.details = torch_ranks.RankTimes()
    torch_ranks.choose_ids(operation)
    if operation.may_be_recorded():
        operation.set(describe_tensors(arguments.get("state_dict")))


def _find_trace(operation: LibraryOperation) -> Context | None:
    return torch_ranks.find_coordinator(operation)


def _record_saved(operation: LibraryOperation, metadata: Any) -> None:
    """Set the bytes of this rank, if the save ran in another process and its writes were not seen."""
    if "write" not in operation.sums:
        sizes = torch_ranks.sizes_in_metadata(metadata)
        operation.set_trusted({names.SIZE_STORED: sizes.get(operation.attribute(names.RANK) or 0)})


def _before_end(operation: LibraryOperation, error: BaseException | None) -> None:
    if error is None:
        return
    attributes, phase = failure_attributes(error)
    operation.set(attributes)
    if phase is not None:
        operation.add_phase_failure(phase, error)


def _find_upload(response: Any) -> Any:
    """Return the future of an async save whose staging is asynchronous, too. The program may change the state when that is complete."""
    upload, staging = getattr(response, "upload_completion", None), getattr(response, "staging_completion", None)
    operation = current_library_operation(SYSTEM)
    if upload is not None and staging is not None and operation is not None and not staging.done():
        staging.add_done_callback(lambda _: operation.set_trusted({names.ASYNC_RELEASED: operation.elapsed()}))
    return upload


_ERRORS: Final[ErrorCodes] = {EXCEPTION: explain_failures}
_SAVE: Final = LibraryCall(
    SYSTEM, "save", _describe, _record_saved, _before_end, error_codes=_ERRORS, prepare=_prepare, inside="phase",
    find_future=_find_upload, find_parent=_find_trace,
)  # fmt: skip
_LOAD: Final = LibraryCall(
    SYSTEM, "load", _describe, None, _before_end, error_codes=_ERRORS, prepare=_prepare, inside="phase", find_parent=_find_trace
)


# Phases


def _wrap_method_logger(wrapped: Callable[..., Any], _module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrap the function that returns the decorator of a step."""
    decorate = wrapped(*args, **kwargs)
    return decorate if current_library_operation(SYSTEM) is None else _StepDecorator(decorate)


class _StepDecorator:
    """Decorates a step of torch as torch does, and as a phase."""

    def __init__(self, decorate: Callable[..., Any]) -> None:
        self._decorate = decorate

    def __call__(self, step: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = self._decorate(step)
        phase = _PHASES.get(step.__name__)
        if phase is None:
            return decorated
        call = SummedPhase(SYSTEM, phase, measure=_measure_step).wrapper_for(decorated)

        def run(*args: Any, **kwargs: Any) -> Any:
            operation = current_library_operation(SYSTEM)
            if operation is not None and phase == "commit" and args:
                _record_ranks(operation, args[0])
            result = call(decorated, None, args, kwargs)
            if operation is not None and phase == "write":
                _add_rank_times(operation, result)
            return result

        return run


def _measure_step(operation: LibraryOperation, _args: Args, _kwargs: Kwargs, result: Any) -> tuple[int | None, int | None]:
    """Return the bytes that this rank has written."""
    if not isinstance(result, list):
        return None, None
    size = sum(getattr(each, "size_in_bytes", 0) for each in result)
    operation.set_trusted({names.SIZE_STORED: size})
    return None, size


def _record_ranks(operation: LibraryOperation, results: Any) -> None:
    """Compare the ranks, on the coordinator, which has the results of all."""
    try:
        operation.set_trusted(torch_ranks.compare_ranks(results))
    except Exception as error:
        record_fault(error)


def _add_rank_times(operation: LibraryOperation, results: Any) -> None:
    try:
        torch_ranks.add_times(
            results, {name: total.busy / 1e9 for name, total in operation.sums.items() if name in ("plan", "stage", "write")}
        )
    except Exception as error:
        record_fault(error)


def _argument(index: int, name: str) -> Callable[[Any, Args, Kwargs], object]:
    return lambda _instance, args, kwargs: kwargs[name] if name in kwargs else args[index]


_STATE: Final = _argument(0, "staging_future_or_state_dict")
_ASYNC_SAVE: Final = ThreadHandover(_STATE, _STATE)
_STAGING: Final = ThreadHandover(_argument(0, "state_dict"), _argument(0, "state_dict"))
_FILES: Final = ThreadHandover(_argument(1, "file_queue"), _argument(1, "file_queue"), waits=True)


class _StagingInThread:
    """The function that stages, perhaps in a thread."""

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        call = SummedPhase(SYSTEM, "stage").wrapper_for(original, declared)

        def wrapper(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
            return _STAGING.run(lambda *a, **k: call(wrapped, instance, a, k), instance, args, kwargs)

        return wrapper


_WAIT: Final = SummedPhase(SYSTEM, "wait")
_COLLECTIVES: Final = ("gather_object", "scatter_object", "broadcast_object", "all_gather_object", "barrier")
_STEPS: Final = "phases `plan`, `stage`, `write`, `commit` and `read`"

# All rows wait for the package itself, because it copies functions of its modules.
TARGETS: Final = (
    Target(_MODULE, "state_dict_saver.save", _SAVE),
    Target(_MODULE, "save", _SAVE, why="the same function"),
    Target(_MODULE, "state_dict_saver.async_save", _SAVE),
    Target(_MODULE, "async_save", _SAVE, why="the same function"),
    Target(_MODULE, "state_dict_loader.load", _LOAD),
    Target(_MODULE, "load", _LOAD, why="the same function"),
    Target(_MODULE, "state_dict_saver._dcp_method_logger", _wrap_method_logger, required=False, why=_STEPS),
    Target(_MODULE, "state_dict_loader._dcp_method_logger", _wrap_method_logger, required=False, why=_STEPS),
    Target(_MODULE, "_async_thread_executor._ThreadBasedAsyncCheckpointExecutor.execute_save", _ASYNC_SAVE.hand_over, why="async saves"),
    Target(_MODULE, "_async_thread_executor.save_wrapper", _ASYNC_SAVE.run, why="async saves"),
    Target(_MODULE, "staging.DefaultStager.stage", _STAGING.hand_over, required=False, why="staging in a thread"),
    Target(_MODULE, "staging.DefaultStager._stage", _StagingInThread(), required=False, why="phase `stage` in a thread"),
    Target(_MODULE, "filesystem._FileSystemWriter._write_data", _FILES.hand_over, required=False, why="writers with several threads"),
    Target(_MODULE, "filesystem._write_files_from_queue", _FILES.run, required=False, why="writers with several threads"),
    Target(
        _MODULE,
        "default_planner.DefaultLoadPlanner.create_local_plan",
        compare_load,
        required=False,
        why="keys that differ from what was saved",
    ),
    *(Target(_MODULE, f"utils._DistWrapper.{name}", _WAIT, required=False, why="waits for the other ranks") for name in _COLLECTIVES),
)


class TorchDistributedInstrumentor(Instrumentor):
    """Observes distributed checkpoints of torch (DCP): `save`, `async_save` and `load`, with the bytes and the times of each rank.

    All ranks of a checkpoint are in one trace, below the save of the coordinator, unless a rank has a task of its own. A rank that takes
    longer than the others is named on the save of the coordinator, with its phase.
    """

    name = "torch-dcp"
    library = "torch"
    package = "torch"
    supported = "torch>=2.15,<3"

    def targets(self) -> Sequence[Target]:
        return TARGETS
