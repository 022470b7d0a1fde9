"""Observes DBOS: the results of steps that it records, and those that it finds when a workflow is replayed.

DBOS looks for the result of each step before it runs it. A load that finds nothing is not recorded: otherwise each step of each first run
would have one. Values are serialized before DBOS begins to record them, so a failure there is an operation of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation
from ckpt_observe.instrument.phase_calls import OperationOrPhase, SummedPhase, text_size
from ckpt_observe.instrument.targets import Family, Target, WrapperFactory
from ckpt_observe.instrument.wrappers import RecordResult
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names

SYSTEM: Final = "dbos"
_FORMATS: Final = {"py_pickle": "pickle", "portable_json": "json"}


def _explain_assertion(error: AssertionError) -> str | None:
    """By its message: the workflow does not exist."""
    return "not_found.checkpoint" if "does not exist" in str(error) else None


_ERRORS: Final[ErrorCodes] = {
    "dbos._error.DBOSWorkflowCancelledError": "cancelled.requested",
    "dbos._error.DBOSWorkflowConflictIDError": "conflict.locked",  # another execution owns the workflow now
    "dbos._error.DBOSStepNondeterminismError": "conflict.exists",
    "dbos._error.DBOSUnexpectedStepError": "compatibility.changed_program",
    "dbos._error.DBOSNonExistentWorkflowError": "not_found.checkpoint",
    "builtins.AssertionError": _explain_assertion,
}


def _describe_step(database: Any, workflow: Any, step: Any, function: Any) -> dict[str, Any]:
    store = "sqlite" if getattr(database, "_is_sqlite", False) else "postgresql"
    return {names.SYSTEM: SYSTEM, names.STORE: store, names.TASK_ID: workflow, names.STEP: step, names.NODE: function}


def _describe_value(output: Any, error: Any, serialization: Any) -> dict[str, Any]:
    return {
        names.SIZE_SERIALIZED: text_size(output if error is None else error),
        names.FORMAT: _FORMATS.get(serialization, serialization),
        names.REASON: None if error is None else "error",
    }


def _describe_result(database: Any, arguments: Arguments) -> dict[str, Any]:
    result = arguments["result"]
    return {
        **_describe_step(database, result["workflow_uuid"], result["function_id"], result["function_name"]),
        **_describe_value(result["output"], result["error"], result["serialization"]),
    }


def _describe_child(database: Any, arguments: Arguments) -> dict[str, Any]:
    return _describe_step(database, arguments["parent_workflow_id"], arguments["parent_function_id"], arguments["function_name"])


def _current_workflow() -> Any:
    """Return DBOS's context of the workflow that runs, or None."""
    context = sys.modules["dbos._context"].get_local_dbos_context()
    return context if context is not None and context.is_within_workflow() else None


def _describe_child_result(database: Any, arguments: Arguments) -> dict[str, Any] | None:
    context, step = arguments.get("ctx"), 0
    if context is None:
        context, step = _current_workflow(), 1  # the next step; only a workflow records that it got a result
        if context is None or context.is_step():
            return None
    return {
        **_describe_step(database, context.workflow_id, context.function_id + step, "DBOS.getResult"),
        **_describe_value(arguments["output"], arguments["error"], arguments["serialization"]),
    }


def _describe_lookup(database: Any, arguments: Arguments) -> dict[str, Any]:
    return _describe_step(database, arguments["workflow_id"], arguments["function_id"], arguments["function_name"])


def _record_recorded(operation: LibraryOperation, result: Any) -> None:
    operation.set(_describe_value(result["output"], result["error"], result["serialization"]))


def _describe_workflows(database: Any, arguments: Arguments) -> dict[str, Any]:
    ids: Sequence[Any] = arguments.get("workflow_ids") or arguments.get("original_workflow_ids") or ()
    targets: Sequence[Any] = arguments.get("forked_workflow_ids") or ()
    described = _describe_step(database, ids[0] if len(ids) == 1 else None, None, None)
    return {**described, names.TARGET_TASK_ID: targets[0] if len(targets) == 1 else None, names.COUNT: len(ids)}


def _describe_deleted(database: Any, arguments: Arguments) -> dict[str, Any]:
    described = _describe_workflows(database, arguments)
    return {**described, names.WHOLE_TASK: True if described.get(names.TASK_ID) else None}


def _describe_value_in_workflow(_serializer: Any, _arguments: Arguments) -> dict[str, Any] | None:
    context = _current_workflow()
    return None if context is None else {names.SYSTEM: SYSTEM, names.TASK_ID: context.workflow_id, names.STEP: context.function_id}


def _serializer_row(operation: str, phase: str) -> OperationOrPhase:
    """Return the row of a serializer's method: an operation if it fails, because DBOS then neither records nor loads the value."""

    def fail_in_phase(operation: LibraryOperation, error: BaseException | None) -> None:
        if error is not None:
            operation.add_phase_failure(phase, error)

    call = LibraryCall(
        SYSTEM, operation, _describe_value_in_workflow, error_codes=_ERRORS, before_end=fail_in_phase, is_nothing=lambda _: True
    )
    return OperationOrPhase(call, SummedPhase(SYSTEM, phase))


def _call(
    operation: str, describe: Describe, record_result: RecordResult | None = None, is_nothing: Callable[[Any], bool] | None = None
) -> LibraryCall:
    return LibraryCall(SYSTEM, operation, describe, record_result, error_codes=_ERRORS, is_nothing=is_nothing)


_RECORD: Final = _call("append", _describe_result)
_LOOK_UP: Final = _call("load", _describe_lookup, _record_recorded, is_nothing=lambda result: result is None)
_DATABASE_ROWS: Final[dict[str, WrapperFactory]] = {
    "record_operation_result": _RECORD,
    "_record_operation_result_txn": OperationOrPhase(_RECORD, SummedPhase(SYSTEM, "write")),
    "init_child_workflow": _call("append", _describe_child),
    "record_get_result": _call("append", _describe_child_result),
    "check_operation_execution": _LOOK_UP,
    "_check_operation_execution_txn": OperationOrPhase(_LOOK_UP, SummedPhase(SYSTEM, "read")),
    "fork_workflow": _call("copy", _describe_workflows),
    "delete_workflows": _call("delete", _describe_deleted),
}
_LOOKUPS: Final = ("check_operation_execution", "_check_operation_execution_txn")
TARGETS: Final = tuple(
    Target("dbos._sys_db", f"SystemDatabase.{method}", row, why="if a result is recorded" if method in _LOOKUPS else "")
    for method, row in _DATABASE_ROWS.items()
)
SERIALIZERS: Final = Family(
    "dbos._serialization",
    "Serializer",
    {"serialize": _serializer_row("append", "serialize"), "deserialize": _serializer_row("load", "deserialize")},
    why="if it fails, in a workflow",
)


class DBOSInstrumentor(Instrumentor):
    """Observes the steps that DBOS records."""

    name = SYSTEM
    library = "dbos"
    package = "dbos"
    supported = "dbos>=3.3,<4"

    def targets(self) -> Sequence[Target]:
        return TARGETS

    def families(self) -> Sequence[Family]:
        return (SERIALIZERS,)
