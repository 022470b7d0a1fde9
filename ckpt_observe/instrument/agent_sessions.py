"""Observes what agent frameworks keep between turns: sessions of OpenAI's SDK and Google's ADK, checkpoints of Microsoft's framework.

Items and events are counted and never recorded.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ckpt_observe.instrument.database_drivers import AIOSQLITE
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryOperation, MemberArgument
from ckpt_observe.instrument.managed_phases import ManagedPhases
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.session_calls import LOCK_PHASES, deserialize_phase, outermost_call, path_of, record_count, serialize_phase
from ckpt_observe.instrument.targets import Family, Target, WrapperFactory
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import ignore_errors

OPENAI: Final = "openai_agents"
ADK: Final = "google_adk"
AGENT_FRAMEWORK: Final = "agent_framework"


# OpenAI Agents SDK


def _session_id(session: Any) -> str | None:
    try:
        return session.session_id  # type: ignore[no-any-return]
    except ValueError:  # a conversation on OpenAI's server has no id before its first use
        return None


def _describe_session(session: Any, _arguments: Arguments) -> dict[str, Any]:
    task_id = _session_id(session)
    return {names.TASK_ID: task_id, names.SESSION_ID: task_id, names.LOCATION: path_of(session, "db_path")}


def _describe_cleared(session: Any, arguments: Arguments) -> dict[str, Any]:
    return {**_describe_session(session, arguments), names.WHOLE_TASK: True}


def _describe_items(session: Any, arguments: Arguments) -> dict[str, Any] | None:
    items = arguments.get("items")
    if not items:  # nothing is stored
        return None
    return {**_describe_session(session, arguments), names.COUNT: len(items) if isinstance(items, list | tuple) else None}


def _record_popped(operation: LibraryOperation, item: Any) -> None:
    operation.set_trusted({names.COUNT: int(item is not None)})


_SESSION_ERRORS: Final[ErrorCodes] = {
    "builtins.RuntimeError": lambda error: "storage.closed" if str(error).endswith("Session is closed") else None,
}
_SESSION_METHODS: Final[Mapping[str, WrapperFactory]] = {
    "get_items": outermost_call(OPENAI, "load", _describe_session, record_count, _SESSION_ERRORS),
    "add_items": outermost_call(OPENAI, "append", _describe_items, None, _SESSION_ERRORS),
    "pop_item": outermost_call(OPENAI, "delete", _describe_session, _record_popped, _SESSION_ERRORS),
    "clear_session": outermost_call(OPENAI, "delete", _describe_cleared, None, _SESSION_ERRORS),
    "_serialize_item": serialize_phase(OPENAI),
    "_deserialize_item": deserialize_phase(OPENAI),
    "_locked_connection": ManagedPhases(OPENAI, LOCK_PHASES),
}
_SESSIONS: Final = Family("agents.memory.session", "SessionABC", _SESSION_METHODS)
_SESSION_PROTOCOL: Final = Family("agents.memory.session", "Session", _SESSION_METHODS, why="sessions that do not inherit from SessionABC")
_JSON: Final = {"json.dumps": serialize_phase(OPENAI), "json.loads": deserialize_phase(OPENAI)}
_SQLITE_SESSIONS: Final = (
    ("agents.memory.sqlite_session", "json.dumps"),
    ("agents.memory.sqlite_session", "json.loads"),
    ("agents.extensions.memory.async_sqlite_session", "json.dumps"),
    ("agents.extensions.memory.async_sqlite_session", "json.loads"),
    ("agents.extensions.memory.advanced_sqlite_session", "json.loads"),
)
_ENCRYPTED: Final = "agents.extensions.memory.encrypt_session"
_SESSION_PHASES: Final = (
    *(Target(module, path, _JSON[path], required=False, why="its own serializer") for module, path in _SQLITE_SESSIONS),
    Target(_ENCRYPTED, "EncryptedSession._wrap", SummedPhase(OPENAI, "encrypt"), required=False),
    Target(_ENCRYPTED, "EncryptedSession._unwrap", SummedPhase(OPENAI, "decrypt"), required=False),
    AIOSQLITE,
)


class OpenAIAgentsInstrumentor(Instrumentor):
    """Observes the sessions of the OpenAI Agents SDK."""

    name = "openai-agents"
    library = "agents.memory.session"
    package = "openai-agents"
    supported = "openai-agents>=0.24,<0.25"

    def __init__(self) -> None:
        super().__init__()
        session = MemberArgument(self, _SESSION_PROTOCOL.name, "session")
        runs = [Target("agents.run", f"AgentRunner.{method}", session) for method in ("run", "run_sync", "run_streamed")]
        self._targets = (*runs, *_SESSION_PHASES)

    def targets(self) -> Sequence[Target]:
        return self._targets

    def families(self) -> Sequence[Family]:
        return _SESSIONS, _SESSION_PROTOCOL


# Google ADK


def _describe_adk(service: Any, arguments: Arguments) -> dict[str, Any]:
    task_id = arguments.get("session_id")
    return {
        names.TASK_NAME: arguments.get("app_name"),
        names.TASK_ID: task_id,
        names.SESSION_ID: task_id,
        names.USER_ID: arguments.get("user_id"),
        names.LOCATION: path_of(service, "_db_path"),
    }


def _describe_deleted(service: Any, arguments: Arguments) -> dict[str, Any]:
    return {**_describe_adk(service, arguments), names.WHOLE_TASK: True}


def _describe_event(service: Any, arguments: Arguments) -> dict[str, Any] | None:
    session, event = arguments["session"], arguments["event"]
    if event.partial:  # a part of a streamed answer, which is not stored
        return None
    ids = {"app_name": session.app_name, "user_id": session.user_id, "session_id": session.id}
    return {
        **_describe_adk(service, ids),
        names.ID: event.id,
        names.RUN_ID: event.invocation_id or None,
        names.NODE: event.author,
        names.COUNT: 1,
    }


def _record_created(operation: LibraryOperation, session: Any) -> None:
    operation.set({names.TASK_ID: session.id, names.SESSION_ID: session.id})


def _record_session(operation: LibraryOperation, session: Any) -> None:
    if session is None:
        operation.set_trusted({names.EXISTS: False})
    else:
        operation.set_trusted({names.COUNT: len(session.events)})


def _record_sessions(operation: LibraryOperation, response: Any) -> None:
    operation.set_trusted({names.COUNT: len(response.sessions)})


_ADK_WRITE_ERRORS: Final = {
    "google.adk.errors.session_not_found_error.SessionNotFoundError": "not_found.checkpoint",
    "google.adk.errors.already_exists_error.AlreadyExistsError": "conflict.exists",
    "google.adk.errors._stale_session_error.StaleSessionError": "conflict.stale",
}
_ADK_READ_ERRORS: Final = {"pydantic_core._pydantic_core.ValidationError": "serialization.malformed"}
_ADK_CALLS: Final = {
    "create_session": outermost_call(ADK, "save", _describe_adk, _record_created, _ADK_WRITE_ERRORS),
    "get_session": outermost_call(ADK, "load", _describe_adk, _record_session, _ADK_READ_ERRORS),
    "list_sessions": outermost_call(ADK, "list", _describe_adk, _record_sessions, _ADK_READ_ERRORS),
    "delete_session": outermost_call(ADK, "delete", _describe_deleted, None, _ADK_WRITE_ERRORS),
}
_SESSION_SERVICES: Final = Family(
    "google.adk.sessions.base_session_service",
    "BaseSessionService",
    {
        **_ADK_CALLS,
        **{f"{method}_sync": call for method, call in _ADK_CALLS.items()},  # deprecated, of InMemorySessionService
        "append_event": outermost_call(ADK, "append", _describe_event, None, _ADK_WRITE_ERRORS),
        "get_user_state": outermost_call(ADK, "load", _describe_adk, None, _ADK_READ_ERRORS),
        "_with_session_lock": ManagedPhases(ADK, LOCK_PHASES),
    },
)
_ADK_COLUMNS: Final = "google.adk.sessions.schemas.shared"
_ADK_PHASES: Final = (
    Target(_ADK_COLUMNS, "DynamicJSON.process_bind_param", serialize_phase(ADK), required=False, why="DatabaseSessionService"),
    Target(_ADK_COLUMNS, "DynamicJSON.process_result_value", deserialize_phase(ADK), required=False, why="DatabaseSessionService"),
    AIOSQLITE,
)


class GoogleADKInstrumentor(Instrumentor):
    """Observes the session services of Google's Agent Development Kit."""

    name = "google-adk"
    library = "google.adk.sessions.base_session_service"
    package = "google-adk"
    supported = "google-adk>=2.13,<3"

    def targets(self) -> Sequence[Target]:
        return _ADK_PHASES

    def families(self) -> Sequence[Family]:
        return (_SESSION_SERVICES,)


# Microsoft Agent Framework


def _describe_checkpoint(storage: Any, arguments: Arguments) -> dict[str, Any]:
    checkpoint = arguments["checkpoint"]
    return {
        names.TASK_NAME: checkpoint.workflow_name,
        names.ID: checkpoint.checkpoint_id,
        names.PARENT_ID: checkpoint.previous_checkpoint_id,
        names.STEP: checkpoint.iteration_count,
        names.LOCATION: path_of(storage, "storage_path"),
    }


def _describe_stored(storage: Any, arguments: Arguments) -> dict[str, Any]:
    return {
        names.TASK_NAME: arguments.get("workflow_name"),
        names.ID: arguments.get("checkpoint_id"),
        names.LOCATION: path_of(storage, "storage_path"),
    }


def _record_loaded(operation: LibraryOperation, checkpoint: Any) -> None:
    if checkpoint is None:
        operation.set_trusted({names.EXISTS: False})
        return
    operation.set(
        {
            names.TASK_NAME: checkpoint.workflow_name,
            names.ID: checkpoint.checkpoint_id,
            names.STEP: checkpoint.iteration_count,
            names.SOURCE_AGE: _age(checkpoint.timestamp),
        }
    )
    _record_file_size(operation, checkpoint.checkpoint_id)


def _record_file_size(operation: LibraryOperation, checkpoint_id: str) -> None:
    """Record the size of the file: it is written in a thread without a context, and JSON is all that it contains."""
    directory = operation.attribute(names.LOCATION)
    if directory is not None:
        with ignore_errors(OSError):
            size = os.stat(os.path.join(directory, f"{checkpoint_id}.json")).st_size
            operation.set_trusted({names.SIZE_SERIALIZED: size, names.SIZE_STORED: size, names.FORMAT: "json"})


def _age(timestamp: str) -> float | None:
    try:
        return round((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(timestamp)).total_seconds(), 3)
    except (TypeError, ValueError):
        return None


def _record_deleted(operation: LibraryOperation, existed: bool) -> None:
    operation.set_trusted({names.COUNT: int(existed)})


_CHECKPOINT_MESSAGES: Final = (
    ("No checkpoint found", "not_found.checkpoint"),
    ("Invalid checkpoint ID", "configuration.invalid_name"),
    ("Failed to decode pickled checkpoint data: Checkpoint deserialization blocked", "serialization.unsupported_type"),
    ("Type mismatch during checkpoint decoding", "integrity.malformed"),
    ("Failed to create WorkflowCheckpoint", "serialization.malformed"),
)
_CHECKPOINT_ERRORS: Final[ErrorCodes] = {
    "agent_framework.exceptions.WorkflowCheckpointException": lambda error: next(
        (code for text, code in _CHECKPOINT_MESSAGES if str(error).startswith(text)), None
    )
}
_STORAGES: Final = Family(
    "agent_framework._workflows._checkpoint",
    "CheckpointStorage",
    {
        "save": outermost_call(AGENT_FRAMEWORK, "save", _describe_checkpoint, _record_file_size, _CHECKPOINT_ERRORS),
        "load": outermost_call(AGENT_FRAMEWORK, "load", _describe_stored, _record_loaded, _CHECKPOINT_ERRORS),
        "get_latest": outermost_call(AGENT_FRAMEWORK, "load", _describe_stored, _record_loaded, _CHECKPOINT_ERRORS),
        "list_checkpoints": outermost_call(AGENT_FRAMEWORK, "list", _describe_stored, record_count, _CHECKPOINT_ERRORS),
        "list_checkpoint_ids": outermost_call(AGENT_FRAMEWORK, "list", _describe_stored, record_count, _CHECKPOINT_ERRORS),
        "delete": outermost_call(AGENT_FRAMEWORK, "delete", _describe_stored, _record_deleted, _CHECKPOINT_ERRORS),
    },
    members=("InMemoryCheckpointStorage", "FileCheckpointStorage"),
)
_ENCODING: Final = "agent_framework._workflows._checkpoint_encoding"
_STORAGE_ARGUMENTS: Final = (
    ("agent_framework._workflows._runner_context", "InProcRunnerContext.__init__", "checkpoint_storage"),
    ("agent_framework._workflows._runner_context", "InProcRunnerContext.set_runtime_checkpoint_storage", "storage"),
    ("agent_framework._workflows._runner", "Runner.restore_from_checkpoint", "checkpoint_storage"),
    ("agent_framework._workflows._functional", "FunctionalWorkflow.__init__", "checkpoint_storage"),
    ("agent_framework._workflows._functional", "FunctionalWorkflow._run_core", "checkpoint_storage"),
)
"""Where a program hands its storage to the library: module, callable and parameter."""


def _decode_phase(operation: LibraryOperation, _args: tuple[Any, ...]) -> str:
    """Return the phase of decoding. A save decodes what it has encoded, to check that it can be loaded."""
    return "validate" if operation.name == "save" else "deserialize"


_CHECKPOINT_PHASES: Final = (
    Target(_ENCODING, "encode_checkpoint_value", SummedPhase(AGENT_FRAMEWORK, "serialize")),
    Target(_ENCODING, "decode_checkpoint_value", SummedPhase(AGENT_FRAMEWORK, _decode_phase)),
    Target(_STORAGES.module, "_wait_for_signal", SummedPhase(AGENT_FRAMEWORK, "wait"), required=False, why="another save of the same file"),
)


class AgentFrameworkInstrumentor(Instrumentor):
    """Observes the checkpoint storages of Microsoft's Agent Framework. `CheckpointStorage` is a protocol: a storage may be any class."""

    name = "agent-framework"
    library = "agent_framework._workflows._checkpoint"
    package = "agent-framework-core"
    supported = "agent-framework-core>=1.23,<2"

    def __init__(self) -> None:
        super().__init__()
        rows = [Target(module, path, MemberArgument(self, _STORAGES.name, argument)) for module, path, argument in _STORAGE_ARGUMENTS]
        self._targets = (*rows, *_CHECKPOINT_PHASES)

    def targets(self) -> Sequence[Target]:
        return self._targets

    def families(self) -> Sequence[Family]:
        return (_STORAGES,)
