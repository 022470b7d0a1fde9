"""What the pages about libraries say beyond the tables of the instrumentors: the attributes in the words of the library, and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ckpt_observe.semconv import attributes as names


class LibraryNotes(NamedTuple):
    """Texts about one library."""

    attributes: Mapping[str, str]
    """The attributes that the instrumentor sets, and what each one is in the library; empty: its general meaning says enough."""
    limits: tuple[str, ...]
    """What is not observed, and why."""
    guide: str = ""
    """A page that is written by hand."""


_TASK: Final = "Runs as tasks: put `ckpt_observe.task` around them, and their operations are in one trace."
# fmt: off
NOTES: Final = {
    "reference": LibraryNotes(
        dict.fromkeys((
            names.SYSTEM, names.STORE, names.LOCATION, names.FORMAT, names.CODEC, names.CIPHER, names.TASK_NAME, names.TASK_ID, names.ID,
            names.STEP, names.STATUS, names.COUNT, names.DAMAGED_COUNT, names.ALTERED_KEYS, names.SIZE_SERIALIZED, names.SIZE_STORED,
            names.SIZE_FREED, names.STATE_TYPE, names.STATE_KEYS, names.STATE_ITEMS, names.STATE_DEPTH, names.KEY_NAMES, names.KEY_SIZES,
            names.DIGEST, names.SOURCE_TRACE, names.SOURCE_SPAN, names.SOURCE_AGE,
        ), ""),
        ("Stores that a program calls without a `Checkpointer`.", "Contents of the state."),
        "[The reference core](../core.md)",
    ),
    "langgraph": LibraryNotes(
        {
            names.SYSTEM: "`langgraph`",
            names.STORE: "from the name of the saver's class: `memory`, `sqlite`, `postgresql`, `redis`, ..., or `custom`",
            names.SAVER: "",
            names.TASK_NAME: "name of the graph",
            names.TASK_ID: "thread id",
            names.SESSION_ID: "thread id",
            names.RUN_ID: "`run_id` of the configuration, or a random one",
            names.TARGET_TASK_ID: "thread id of the copy",
            names.STATUS: "`paused` on a task in which a node called `interrupt()`",
            names.ID: "checkpoint id",
            names.PARENT_ID: "id of the previous checkpoint",
            names.NAMESPACE: "`checkpoint_ns` of a subgraph",
            names.STEP: "step of the graph; -1 is the input",
            names.REASON: "of a save `input`, `loop`, `update` or `fork`; of an append `interrupt`, `error`, `resume` or `scheduled`",
            names.NODE: "node that appended",
            names.WRITER_ID: "id of the execution of the node",
            names.FORMAT: "",
            names.CIPHER: "with `EncryptedSerializer`",
            names.SIZE_SERIALIZED: "bytes that the serializer produced",
            names.KEY_NAMES: "the largest channels",
            names.KEY_SIZES: "",
            names.KEY_SIZES_SAMPLED: "if all channels are stored as one block: measured after a change of 10 %, and at every 20th save",
            names.EXISTS: "",
            names.COUNT: "checkpoints that a list returned",
            names.SOURCE_AGE: "",
            names.ALTERED_KEYS: "channels with values that LangGraph could not rebuild",
            names.ALTERED_TYPES: "",
            names.ERROR_PATH: "with LangGraph's own serializers",
        },
        (
            "Runs of a graph without a checkpointer, because they make no checkpoints.",
            "`langgraph.store` (long-term memory), because it is not a checkpoint.",
            "Nodes, models and tools. If another instrumentation makes spans for them, checkpoints are in the same trace.",
            "Graphs that run on a server: observe the process of the server, because that is where checkpoints are saved.",
            "Contents of the state. Only names and sizes of channels, and types of altered values, are recorded.",
        ),
        "[LangGraph in five minutes](../langgraph.md)",
    ),
    "openai-agents": LibraryNotes(
        {
            names.SYSTEM: "`openai_agents`",
            names.STORE: "from the name of the session's class, or the dialect of its SQLAlchemy engine",
            names.SAVER: "class of the session",
            names.TASK_ID: "session id",
            names.SESSION_ID: "session id",
            names.LOCATION: "file of an SQLite session",
            names.COUNT: "number of items",
            names.EXISTS: "False if the session has no items",
            names.DAMAGED_COUNT: "items that could not be decoded and were left out",
            names.SIZE_SERIALIZED: "if the session serializes in this process",
        },
        (
            _TASK,
            "Phases of sessions that a server keeps, such as `OpenAIConversationsSession`.",
            "The id of such a session before its first use.",
            "Compaction inside a database. What it clears and appends through the methods above is observed.",
            "Contents of items.",
        ),
    ),
    "google-adk": LibraryNotes(
        {
            names.SYSTEM: "`google_adk`",
            names.STORE: "from the name of the service's class, or the dialect of its SQLAlchemy engine",
            names.SAVER: "class of the service",
            names.TASK_NAME: "name of the app",
            names.TASK_ID: "session id",
            names.SESSION_ID: "session id",
            names.USER_ID: "",
            names.LOCATION: "file of an SQLite service",
            names.ID: "id of the event",
            names.RUN_ID: "invocation id of the event",
            names.NODE: "author of the event",
            names.COUNT: "number of events or sessions",
            names.EXISTS: "",
            names.SIZE_SERIALIZED: "events and states as JSON, of `DatabaseSessionService`, except on PostgreSQL",
        },
        (
            _TASK,
            "Partial events of a streamed answer, because ADK does not store them.",
            "Artifact and memory services, because they do not keep checkpoints.",
            "Phases of sessions that a server keeps, such as those of `VertexAiSessionService`.",
            "Contents of events and states.",
        ),
    ),
    "agent-framework": LibraryNotes(
        {
            names.SYSTEM: "`agent_framework`",
            names.STORE: "`file`, or from the name of the storage's class",
            names.SAVER: "class of the storage",
            names.TASK_NAME: "name of the workflow",
            names.ID: "checkpoint id",
            names.PARENT_ID: "id of the previous checkpoint",
            names.STEP: "iteration of the workflow",
            names.LOCATION: "directory of a file storage",
            names.FORMAT: "`json`, of a file storage",
            names.SIZE_SERIALIZED: "size of the file",
            names.SIZE_STORED: "size of the file",
            names.SOURCE_AGE: "",
            names.COUNT: "number of checkpoints that were listed or deleted",
            names.EXISTS: "",
        },
        (
            _TASK,
            "A storage of your own before a workflow gets it, because `CheckpointStorage` is a protocol that any class can implement.",
            "Sizes, except those of files.",
        ),
    ),
    "crewai": LibraryNotes(
        {
            names.SYSTEM: "`crewai`",
            names.STORE: "from the name of the class of the persistence or provider",
            names.SAVER: "class of the persistence or provider",
            names.LOCATION: "database, or directory of checkpoints",
            names.TASK_ID: "id of the flow, crew or agent",
            names.ID: "checkpoint id",
            names.PARENT_ID: "id of the previous checkpoint",
            names.NAMESPACE: "branch, unless it is `main`",
            names.NODE: "method of the flow",
            names.REASON: "event that caused the checkpoint, or `pending_feedback`",
            names.STATE_KEYS: "number of keys of a flow's state",
            names.SIZE_SERIALIZED: "JSON that is stored",
            names.SIZE_STORED: "size of the file",
            names.EXISTS: "",
            names.COUNT: "number of checkpoints that were pruned",
        },
        (_TASK, "Memories and knowledge of crews, because they are not checkpoints.", "Contents of states."),
    ),
    "dbos": LibraryNotes(
        {
            names.SYSTEM: "`dbos`",
            names.STORE: "`sqlite` or `postgresql`",
            names.TASK_ID: "workflow id",
            names.TARGET_TASK_ID: "workflow id of the fork",
            names.STEP: "number of the step",
            names.NODE: "function of the step",
            names.REASON: "`error` if the step failed, and DBOS recorded that",
            names.FORMAT: "`pickle` or `json`",
            names.SIZE_SERIALIZED: "result of the step, as DBOS stores it",
            names.COUNT: "number of workflows that were copied or deleted",
        },
        (
            _TASK,
            "Lookups that find no recorded step: DBOS makes one before each step of a first run.",
            "Queues, schedules, messages and events of DBOS, because they are not checkpoints.",
        ),
    ),
    "joblib": LibraryNotes(
        {
            names.SYSTEM: "`joblib`",
            names.STORE: "`file`",
            names.FORMAT: "`pickle`",
            names.LOCATION: "path of the file",
            names.SIZE_STORED: "size of the file, if joblib opened it",
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "`joblib.Memory` and the files through which joblib passes arrays to workers, because they are caches.",
            "The task: joblib knows only a file. Put `ckpt_observe.task` around the calls to see how old the last checkpoint of a task is.",
        ),
    ),
}
# fmt: on
