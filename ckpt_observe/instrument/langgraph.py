"""Observes LangGraph: every checkpoint saver, its serializer and its database, and runs of graphs as tasks.

All savers inherit from `BaseCheckpointSaver`, so those of other packages and of the host program are observed too. LangGraph calls a saver
from thread pools that lose the context; the run is found by the thread id (`runs`). In `put`, the `checkpoint_id` of the configuration is
that of the parent.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Raw

from ckpt_observe.instrument.database_drivers import AIOSQLITE, CURSOR_PHASES
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.langgraph_state import StateDetails, items_of
from ckpt_observe.instrument.library_call import IDENTITY, Arguments, Describe, LibraryCall, LibraryOperation, MemberArgument
from ckpt_observe.instrument.managed_phases import ManagedPhases
from ckpt_observe.instrument.observed_locks import ObservedLocks
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.runs import RunCall
from ckpt_observe.instrument.saver_attributes import attributes_of_class
from ckpt_observe.instrument.targets import Family, Target, Versions
from ckpt_observe.record import running_tasks, trace_context
from ckpt_observe.semconv import attributes as names

SYSTEM: Final = "langgraph"
_BASE: Final = "langgraph.checkpoint.base"
_SERDE: Final = "langgraph.checkpoint.serde.base"
_PREGEL: Final = "langgraph.pregel.main"
_DECLARED_METHODS: Final = (
    "put", "put_writes", "get_tuple", "list", "delete_thread", "aput", "aput_writes", "aget_tuple", "alist", "adelete_thread",
)  # fmt: skip
"""Methods of the base class in all supported versions. The others came with version 4.1, or are those of some savers only."""
_REASONS: Final = {"__interrupt__": "interrupt", "__error__": "error", "__resume__": "resume", "__scheduled__": "scheduled"}
"""Why something was appended, by the channel that LangGraph writes it to."""
_CHECKPOINT: Final = (names.NAMESPACE, names.ID, names.WRITER_ID)
"""What a call is about, without the thread: a saver may change its id, such as to put the name of a tenant in front. Ids of checkpoints
are unique."""
_PULL: Final = "~__pregel_pull, "
_NO_MEMBERS: Final[dict[str, Any]] = {}
_AsyncLock: Final = asyncio.Lock
_RUN_ERRORS: Final = {
    "langgraph.errors.GraphBubbleUp": "ok",  # an interrupt is a pause, not a failure
    "langgraph.errors.GraphRecursionError": "configuration.invalid",  # the graph needs more steps than `recursion_limit`
}


# Attributes of the operations


def _configurable(arguments: Arguments) -> Any:
    return (arguments.get("config") or {}).get("configurable") or {}


def _text(value: Any) -> str | None:
    """Return an id as text. A thread id may be a number."""
    return value if value is None or type(value) is str else str(value)


def _describe_put(_saver: Any, arguments: Arguments) -> dict[str, Any]:
    configurable = (arguments.get("config") or {}).get("configurable") or {}
    thread, metadata = configurable.get("thread_id"), arguments.get("metadata") or {}
    return {
        names.TASK_ID: thread if type(thread) is str else _text(thread),
        names.ID: arguments["checkpoint"]["id"],
        names.PARENT_ID: configurable.get("checkpoint_id"),
        names.NAMESPACE: configurable.get("checkpoint_ns") or None,
        names.STEP: metadata.get("step"),
        names.REASON: metadata.get("source"),
    }


def _describe_put_writes(_saver: Any, arguments: Arguments) -> dict[str, Any]:
    configurable = _configurable(arguments)
    reason = next((_REASONS[write[0]] for write in items_of(arguments.get("writes")) if write[0] in _REASONS), None)
    if reason == "interrupt":
        _mark_task_as_paused()
    return {
        names.TASK_ID: _text(configurable.get("thread_id")),
        names.ID: configurable.get("checkpoint_id"),
        names.NAMESPACE: configurable.get("checkpoint_ns") or None,
        names.WRITER_ID: arguments.get("task_id"),
        names.NODE: _node_of(arguments.get("task_path") or ""),
        names.REASON: reason,
    }


def _node_of(task_path: str) -> str | None:
    """Return the node of `~__pregel_pull, NODE`, or the one that called a function: `~__pregel_push, ~__pregel_pull, NODE, NUMBER, NUMBER`.

    The path of a `Send` has only numbers.
    """
    caller, _, node = task_path.partition(_PULL)
    return (node.partition(", ")[0] if caller else node) or None


def _mark_task_as_paused() -> None:
    task = running_tasks.enclosing_task()
    if task is not None:
        task.set({names.STATUS: "paused"})


def _describe_read(_saver: Any, arguments: Arguments) -> dict[str, Any]:
    configurable = _configurable(arguments)
    return {
        names.TASK_ID: _text(configurable.get("thread_id")),
        names.ID: configurable.get("checkpoint_id"),
        names.NAMESPACE: configurable.get("checkpoint_ns") or None,
    }


def _describe_delete(_saver: Any, arguments: Arguments) -> dict[str, Any]:
    return {names.TASK_ID: _text(arguments.get("thread_id")), names.WHOLE_TASK: True}


def _describe_prune(_saver: Any, arguments: Arguments) -> dict[str, Any]:
    ids = items_of(arguments.get("thread_ids"))
    if len(ids) != 1:
        return {}
    return {names.TASK_ID: _text(ids[0]), names.WHOLE_TASK: True if arguments.get("strategy") == "delete" else None}


def _describe_copy(_saver: Any, arguments: Arguments) -> dict[str, Any]:
    source, target = arguments.get("source_thread_id"), arguments.get("target_thread_id")
    return {names.TASK_ID: _text(source), names.TARGET_TASK_ID: _text(target)}


def _describe_nothing(_saver: Any, _arguments: Arguments) -> dict[str, Any]:
    return {}


def _shared_attributes(saver: Any) -> Raw:
    kind: Any = type(saver)
    return attributes_of_class(SYSTEM, kind)


def _record_loaded(operation: LibraryOperation, loaded: Any) -> None:
    if loaded is None:
        operation.set({names.EXISTS: False})
        return
    operation.details.loaded = loaded
    metadata = loaded.metadata or {}
    operation.set(
        {
            names.ID: loaded.config["configurable"].get("checkpoint_id"),
            names.STEP: metadata.get("step"),
            names.SOURCE_AGE: _age(loaded.checkpoint.get("ts")),
        }
    )


def _record_history(operation: LibraryOperation, history: Any) -> None:
    operation.set({names.COUNT: sum(len(each["writes"]) for each in history.values())})


def _age(timestamp: Any) -> float | None:
    """Return the seconds since LangGraph created a checkpoint."""
    try:
        return round((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(timestamp)).total_seconds(), 3)
    except (TypeError, ValueError):
        return None


# Runs


def _describe_run(graph: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the attributes of a run. A graph without a checkpointer makes no checkpoints, so its runs are not recorded."""
    config = (args[1] if len(args) > 1 else kwargs.get("config")) or {}
    defaults = getattr(graph, "config", None) or {}
    configurable = {**(defaults.get("configurable") or {}), **(config.get("configurable") or {})}
    if not getattr(graph, "checkpointer", None) and not configurable.get("__pregel_checkpointer"):
        return None
    thread = _text(configurable.get("thread_id"))
    return {
        names.TASK_NAME: getattr(graph, "name", None) or "graph",
        names.TASK_ID: thread,
        names.SESSION_ID: thread,
        names.RUN_ID: _text(config.get("run_id") or defaults.get("run_id")) or trace_context.new_span_id(),
    }


# The table


_FIRST_PHASES: Final = dict.fromkeys(("load", "list"), ("write", "read", "read"))


def _creates_tables(saver: Any) -> bool:
    """Return whether the next cursor of a saver of SQLite creates its tables before its body. That is not a wait."""
    return getattr(saver, "__dict__", _NO_MEMBERS).get("is_setup") is False


def _saver_rows(prepare: Callable[[LibraryOperation, Any, Arguments], object]) -> dict[str, LibraryCall | ManagedPhases]:
    """Return the rows of a saver's methods: each is observed together with its asynchronous twin."""

    def call(operation: str, describe: Describe, record_result: Callable[[Any, Any], object] | None = None) -> LibraryCall:
        return LibraryCall(
            SYSTEM, operation, describe, record_result, StateDetails.record, shared=_shared_attributes, prepare=prepare,
            identity=_CHECKPOINT if operation in ("save", "append", "load", "list") else IDENTITY,
        )  # fmt: skip

    methods = {
        "put": call("save", _describe_put),
        "put_writes": call("append", _describe_put_writes),
        "get_tuple": call("load", _describe_read, _record_loaded),
        "get_delta_channel_history": call("load", _describe_read, _record_history),
        "list": call("list", _describe_read),
        "delete_thread": call("delete", _describe_delete),
        "delete_for_runs": call("delete", _describe_nothing),
        "prune": call("prune", _describe_prune),
        "copy_thread": call("copy", _describe_copy),
    }
    cursor = ManagedPhases(SYSTEM, CURSOR_PHASES, _FIRST_PHASES, _creates_tables)
    return {**methods, **{f"a{method}": row for method, row in methods.items()}, "cursor": cursor, "_cursor": cursor}


_RUN: Final = RunCall(SYSTEM, _describe_run, _RUN_ERRORS)
TARGETS: Final = (
    Target(_PREGEL, "Pregel.stream", _RUN, versions=Versions("langgraph")),
    Target(_PREGEL, "Pregel.astream", _RUN, versions=Versions("langgraph")),
    AIOSQLITE,
    Target(
        "psycopg.types.json", "_JsonDumper.dump",
        SummedPhase(SYSTEM, "serialize", StateDetails.add_json), required=False,
        why="PostgreSQL stores plain values as JSON, past the serializer", versions=Versions("psycopg"),
    ),
)  # fmt: skip
SERIALIZERS: Final = Family(
    _SERDE,
    "SerializerProtocol",
    {
        "dumps_typed": SummedPhase(SYSTEM, "serialize", StateDetails.add_serialized),
        "loads_typed": SummedPhase(SYSTEM, "deserialize", StateDetails.add_loaded),
    },
    when=_BASE,
)
CIPHERS: Final = Family(
    _SERDE,
    "CipherProtocol",
    {
        "encrypt": SummedPhase(SYSTEM, "encrypt", lambda _operation, args, _kwargs, result: (len(args[0]), len(result[1]))),
        "decrypt": SummedPhase(SYSTEM, "decrypt", lambda _operation, args, _kwargs, result: (len(args[1]), len(result))),
    },
    when=_BASE,
    why="EncryptedSerializer",
)


class LangGraphInstrumentor(Instrumentor):
    """Observes runs of graphs as tasks, and every checkpoint saver with its serializer and database.

    All savers inherit from `BaseCheckpointSaver`: those of LangGraph (memory, SQLite, PostgreSQL, Redis), of other packages, and your own.
    Waiting for the `asyncio.Lock` of an asynchronous saver, its attribute `lock`, is the phase `wait`. The first call of `SqliteSaver`
    creates its tables; if that is a load, this is a phase `write`.
    """

    name = "langgraph"
    library = _BASE
    package = "langgraph-checkpoint"
    supported = "langgraph-checkpoint>=2.1.2,<5"

    def __init__(self) -> None:
        super().__init__()
        savers = Family(_BASE, "BaseCheckpointSaver", _saver_rows(self._prepare), declared=_DECLARED_METHODS)
        self._families_table = (savers, SERIALIZERS, CIPHERS)
        graphs = Target(_PREGEL, "Pregel.__init__", MemberArgument(self, savers.name, "checkpointer"), versions=Versions("langgraph"))
        self._targets_table = (*TARGETS, graphs)
        self._locks = ObservedLocks()
        self._last_adopted: weakref.ref[type] | None = None
        """The class of the last serializer that was adopted. A cache: `adopt` would take 3 µs to find nothing to do."""

    def targets(self) -> Sequence[Target]:
        return self._targets_table

    def families(self) -> Sequence[Family]:
        return self._families_table

    def uninstrument(self) -> None:
        """Put the originals back, and forget which serializers and locks were adopted."""
        super().uninstrument()
        self._locks.release()
        self._last_adopted = None

    def _prepare(self, operation: LibraryOperation, saver: Any, arguments: Arguments) -> None:
        """Observe the lock of an asynchronous saver, and its serializer, which may have any class: LangGraph asks only for its methods."""
        lock = getattr(saver, "__dict__", _NO_MEMBERS).get("lock")  # not `saver.lock`, which may be a property that does something
        if type(lock) is _AsyncLock:  # asked here too, because a call takes 0.1 µs, and most savers have none
            self._locks.observe(lock)
        serializer = getattr(saver, "serde", None)
        if self._last_adopted is None or self._last_adopted() is not type(serializer):
            self.adopt(SERIALIZERS.name, serializer)
            inner, cipher = getattr(serializer, "serde", None), getattr(serializer, "cipher", None)  # of EncryptedSerializer
            if inner is not None:
                self.adopt(SERIALIZERS.name, inner)
            if cipher is not None:
                self.adopt(CIPHERS.name, cipher)
            else:  # LangGraph defines the class of a cipher in a function, so every encrypting serializer has another one
                self._last_adopted = weakref.ref(type(serializer))
        operation.details = StateDetails.of_call(operation.name, saver, arguments)
