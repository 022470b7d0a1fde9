"""Observes CrewAI: the states of flows, and checkpoints.

CrewAI has two kinds of stores. A `FlowPersistence` keeps the state of a flow after each method. A `BaseProvider` keeps checkpoints of
everything that runs. `RuntimeState` and CrewAI's event listener serialize for a provider: their calls are the operations, and the
provider's call is a phase. A provider that the host program calls itself is an operation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.database_drivers import AIOSQLITE
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation
from ckpt_observe.instrument.managed_phases import ManagedPhases
from ckpt_observe.instrument.phase_calls import OperationOrPhase, SummedPhase, text_size
from ckpt_observe.instrument.saver_attributes import store_of_class
from ckpt_observe.instrument.targets import Family, Target
from ckpt_observe.instrument.wrappers import Args, Kwargs, RecordResult
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.phase import Sizes
from ckpt_observe.semconv import attributes as names

SYSTEM: Final = "crewai"


def _explain_value_error(error: ValueError) -> str | None:
    """By its message: the checkpoint does not exist, or an argument is wrong."""
    message = str(error)
    if "Checkpoint not found" in message:
        return "not_found.checkpoint"
    if "state_data must be" in message:
        return "serialization.unsupported_type"
    return "configuration.invalid" if "restore_from must be set" in message or "Branch name escapes" in message else None


_ERRORS: Final[ErrorCodes] = {
    "builtins.ValueError": _explain_value_error,
    "pydantic_core._pydantic_core.ValidationError": "serialization.malformed",
    # Pydantic's, while CrewAI serializes in a thread and the flow goes on: 1 of 300 runs of a flow with two methods
    "pyo3_runtime.PanicException": "serialization.concurrent_change",
    "portalocker.exceptions.BaseLockException": "conflict.locked",
}


def _describe_store(store: Any) -> dict[str, Any]:
    kind: type = type(store)
    return {names.SYSTEM: SYSTEM, names.STORE: store_of_class(kind), names.SAVER: kind.__qualname__}


def _describe_flow(persistence: Any, arguments: Arguments) -> dict[str, Any]:
    context = arguments.get("context")  # of pending feedback
    return {
        **_describe_store(persistence),
        names.LOCATION: getattr(persistence, "db_path", None),
        names.TASK_ID: arguments["flow_uuid"],
        names.NODE: arguments.get("method_name") or getattr(context, "method_name", None),
        names.REASON: None if context is None else "pending_feedback",
    }


def _record_flow_state(operation: LibraryOperation, result: Any) -> None:
    state = result[0] if isinstance(result, tuple) else result  # load_pending_feedback returns the context, too
    operation.set({names.EXISTS: False} if state is None else {names.STATE_KEYS: len(state)})


class _Checkpoint:
    """The checkpoint of an operation: its provider, and its location as soon as it is known."""

    __slots__ = ("location", "provider")

    def __init__(self, provider: Any, location: Any = None) -> None:
        self.provider, self.location = provider, location

    @staticmethod
    def record(operation: LibraryOperation, error: BaseException | None) -> None:
        """Set the id that only the provider can read from the location, and the size of the file, if it is one."""
        provider, location = operation.details.provider, operation.details.location
        if error is None and provider is not None and location is not None:
            store = _describe_store(provider)
            size = os.path.getsize(location) if store[names.STORE] == "file" and os.path.isfile(location) else None
            operation.set({**store, names.ID: provider.extract_id(location), names.SIZE_STORED: size})


def _describe_checkpoint(provider: Any, location: Any, parent: Any, branch: Any) -> dict[str, Any]:
    return {
        **({names.SYSTEM: SYSTEM} if provider is None else _describe_store(provider)),
        names.LOCATION: str(location).rpartition("#")[0] or str(location),  # SqliteProvider appends the id
        names.PARENT_ID: parent,
        names.NAMESPACE: _namespace(branch),
    }


def _namespace(branch: Any) -> Any:
    return None if branch == "main" else branch


def _describe_provider_call(provider: Any, arguments: Arguments) -> dict[str, Any]:
    described = _describe_checkpoint(provider, arguments["location"], arguments.get("parent_id"), arguments.get("branch"))
    return {**described, names.SIZE_SERIALIZED: text_size(arguments.get("data"))}


def _describe_retention(provider: Any, arguments: Arguments) -> dict[str, Any]:
    """Return the attributes of a prune. CrewAI prunes after each save if `max_checkpoints` is set; a call by the program looks the same."""
    return {**_describe_provider_call(provider, arguments), names.RETENTION: True}


def _describe_runtime(state: Any, provider: Any, location: Any, config: Any = None) -> dict[str, Any]:
    return {**_describe_checkpoint(provider, location, state._parent_id, state._branch), names.TASK_ID: _task_id(state, config)}


def _task_id(state: Any, config: Any = None, *, is_restored: bool = False) -> str | None:
    """Return the id of the flow, crew or agent that the checkpoint is made for; None if there are several.

    A checkpoint contains all that exist: flows that start each other, or that were created before one of them ran. An automatic one is
    made for the entity that has the configuration.
    """
    entities = list(state.root)
    if config is not None:
        entities = [entity for entity in entities if getattr(entity, "checkpoint", None) is config] or entities
    if len(entities) != 1:
        return None
    [entity] = entities
    restored = (getattr(entity, "checkpoint_state", None) if is_restored else None) or {}  # the flow itself gets it later
    task = restored.get("id") or getattr(entity, "flow_id", None) or getattr(entity, "id", None)
    return None if task is None else str(task)


def _describe_automatic_save(_instance: Any, arguments: Arguments) -> dict[str, Any]:
    config, event = arguments["cfg"], arguments.get("event")
    return {
        **_describe_runtime(arguments["state"], config.provider, config.location, config),
        names.REASON: getattr(event, "type", None),
        names.NODE: getattr(event, "method_name", None),
    }


def _describe_restored(_class: Any, arguments: Arguments) -> dict[str, Any]:
    return _describe_checkpoint(None, arguments["config"].restore_from, None, "main")


def _record_restored(operation: LibraryOperation, state: Any) -> None:
    operation.details.provider = state._provider
    operation.set({names.TASK_ID: _task_id(state, is_restored=True), names.NAMESPACE: _namespace(state._branch)})


def _record_location(operation: LibraryOperation, location: Any) -> None:
    operation.details.location = location


def _measure_write(operation: LibraryOperation, args: Args, kwargs: Kwargs, location: Any) -> Sizes:
    """Take over what only the provider gets to know, if it is called within another operation."""
    size = text_size(args[0] if args else kwargs.get("data"))
    operation.set_trusted({names.SIZE_SERIALIZED: size})
    operation.details.location = location
    return size, None


def _measure_read(operation: LibraryOperation, _args: Args, _kwargs: Kwargs, data: Any) -> Sizes:
    operation.set_trusted({names.SIZE_SERIALIZED: text_size(data)})
    return None, text_size(data)


def _call(
    operation: str,
    describe: Describe,
    record_result: RecordResult | None = None,
    find: Callable[[Any, Arguments], _Checkpoint] | None = None,
) -> LibraryCall:
    """Return a row. `find` returns the checkpoint of a call, from the object and the arguments."""

    def prepare(operation: LibraryOperation, instance: Any, arguments: Arguments) -> None:
        if find is not None:
            operation.details = find(instance, arguments)

    before_end = None if find is None else _Checkpoint.record
    return LibraryCall(SYSTEM, operation, describe, record_result, before_end, error_codes=_ERRORS, prepare=prepare)


_SAVE_FLOW: Final = _call("save", _describe_flow)
_LOAD_FLOW: Final = _call("load", _describe_flow, _record_flow_state)
_WRITE: Final = OperationOrPhase(
    _call("save", _describe_provider_call, _record_location, lambda provider, _: _Checkpoint(provider)),
    SummedPhase(SYSTEM, "write", _measure_write),
)
_READ: Final = OperationOrPhase(
    _call(
        "load",
        _describe_provider_call,
        lambda operation, data: operation.set_trusted({names.SIZE_SERIALIZED: text_size(data)}),
        lambda provider, arguments: _Checkpoint(provider, arguments["location"]),
    ),
    SummedPhase(SYSTEM, "read", _measure_read),
)
_PRUNE: Final = _call("prune", _describe_retention, lambda operation, count: operation.set({names.COUNT: count}))
_SAVE_RUNTIME: Final = _call(
    "save",
    lambda state, arguments: _describe_runtime(state, state._provider, arguments["location"]),
    find=lambda state, _: _Checkpoint(state._provider),
)
_LOAD_RUNTIME: Final = _call(
    "load", _describe_restored, _record_restored, lambda _class, arguments: _Checkpoint(None, str(arguments["config"].restore_from))
)
_SAVE_AUTOMATICALLY: Final = _call(
    "save", _describe_automatic_save, find=lambda _instance, arguments: _Checkpoint(arguments["cfg"].provider)
)
_DUMP: Final = SummedPhase(SYSTEM, "serialize", lambda _operation, _args, _kwargs, text: (None, text_size(text)))
_PARSE: Final = SummedPhase(SYSTEM, "deserialize", lambda _operation, args, _kwargs, _state: (text_size(args[0]), None))
_LOCK_PHASES: Final = dict.fromkeys(("save", "delete"), ("wait", "write", "write"))
TARGETS: Final = (
    AIOSQLITE,
    Target("crewai.state.runtime", "RuntimeState.checkpoint", _SAVE_RUNTIME),
    Target("crewai.state.runtime", "RuntimeState.acheckpoint", _SAVE_RUNTIME),
    Target("crewai.state.runtime", "RuntimeState.from_checkpoint", _LOAD_RUNTIME),
    Target("crewai.state.runtime", "RuntimeState.afrom_checkpoint", _LOAD_RUNTIME),
    Target(
        "crewai.state.checkpoint_listener",
        "_do_checkpoint",
        _SAVE_AUTOMATICALLY,
        why="checkpoints after events, of which CrewAI only logs failures",
    ),
    Target("crewai.state.checkpoint_listener", "json.dumps", _DUMP, required=False),
    Target("crewai.flow.persistence.sqlite", "json.dumps", _DUMP, required=False),
    Target("crewai.flow.persistence.sqlite", "json.loads", _PARSE, required=False),
    Target(
        "crewai.flow.persistence.sqlite",
        "store_lock",
        ManagedPhases(SYSTEM, _LOCK_PHASES),
        why="the lock between processes, and what it protects",
    ),
)
FAMILIES: Final = (
    Family(
        "crewai.flow.persistence.base",
        "FlowPersistence",
        {
            "save_state": _SAVE_FLOW,
            "load_state": _LOAD_FLOW,
            "save_pending_feedback": _SAVE_FLOW,
            "load_pending_feedback": _LOAD_FLOW,
            "clear_pending_feedback": _call("delete", _describe_flow),
        },
    ),
    Family(
        "crewai.state.provider.core",
        "BaseProvider",
        {"checkpoint": _WRITE, "acheckpoint": _WRITE, "from_checkpoint": _READ, "afrom_checkpoint": _READ, "prune": _PRUNE},
    ),
)


class CrewAIInstrumentor(Instrumentor):
    """Observes CrewAI's flow persistence and checkpoints."""

    name = SYSTEM
    library = "crewai"
    package = "crewai"
    supported = "crewai>=1.15.30,<2"

    def targets(self) -> Sequence[Target]:
        return TARGETS

    def families(self) -> Sequence[Family]:
        return FAMILIES
