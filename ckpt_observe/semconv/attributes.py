"""Attribute names. `checkpoint.*` is ours; OpenTelemetry's own names are used where they exist."""

from __future__ import annotations

from typing import Final, NamedTuple


class Attribute(NamedTuple):
    """One attribute: `kind` is string, int, double, boolean, string[] or int[]; `on` says which spans carry it."""

    kind: str
    on: str
    meaning: str


ATTRIBUTES: Final[dict[str, Attribute]] = {}


def _attribute(name: str, kind: str, on: str, meaning: str) -> str:
    ATTRIBUTES[name] = Attribute(kind, on, meaning)
    return name


OPERATION: Final = _attribute("checkpoint.operation", "string", "operation", "What is done; see Operations.")
ID: Final = _attribute("checkpoint.id", "string", "operation", "The checkpoint's id, as its library names it.")
OUTCOME: Final = _attribute("checkpoint.outcome", "string", "operation, phase, task", "How it ended; see Outcomes.")
SYSTEM: Final = _attribute(
    "checkpoint.system", "string", "operation", "The library that did it: `reference`, `langgraph`, `torch`, or `custom`."
)
STORE: Final = _attribute(
    "checkpoint.store", "string", "operation", "Kind of store: `memory`, `file`, `sqlite`, `postgresql`, `redis`, `s3`."
)
LOCATION: Final = _attribute("checkpoint.location", "string", "operation", "Where it is kept: a path or URL without credentials.")
FORMAT: Final = _attribute("checkpoint.format", "string", "operation", "Serialization format: `json`, `msgpack`, `pickle`, `safetensors`.")
STEP: Final = _attribute("checkpoint.step", "int", "operation", "The step of the run that the checkpoint holds.")
STATUS: Final = _attribute(
    "checkpoint.status", "string", "operation", "What the program says of the run at that moment: `running`, `done`, or its own word."
)
COUNT: Final = _attribute("checkpoint.count", "int", "operation", "How many checkpoints a list, prune or verify touched.")
DAMAGED_COUNT: Final = _attribute(
    "checkpoint.damaged",
    "int",
    "verify, load, restore",
    "How many checkpoints were found damaged: by a verify, or passed over until a whole one was found.",
)
ALTERED_KEYS: Final = _attribute(
    "checkpoint.altered.keys",
    "string[]",
    "verify, load, restore",
    "Top-level keys of the state that came back other than they were saved: lost, or of another type.",
)
INTERVAL: Final = _attribute(
    "checkpoint.interval",
    "double",
    "task, operation",
    "Seconds between two saves, as the program declares it; where it does not, the metrics learn it.",
)

SIZE_STATE: Final = _attribute("checkpoint.size.state", "int", "operation", "Bytes of the state in memory, where the library knows.")
SIZE_SERIALIZED: Final = _attribute("checkpoint.size.serialized", "int", "operation", "Bytes after serialization.")
SIZE_STORED: Final = _attribute("checkpoint.size.stored", "int", "operation", "Bytes in the store, header included.")
SIZE_FREED: Final = _attribute("checkpoint.size.freed", "int", "delete, prune", "Bytes that the removed checkpoints took in the store.")
CODEC: Final = _attribute("checkpoint.compression.codec", "string", "operation", "`none`, `gzip`, `zstd`, `lz4`.")
CIPHER: Final = _attribute("checkpoint.encryption.cipher", "string", "operation", "The cipher, where the checkpoint is encrypted.")
RATIO: Final = _attribute("checkpoint.compression.ratio", "double", "operation", "serialized / stored: above 1 is a gain.")
THROUGHPUT: Final = _attribute("checkpoint.throughput", "double", "operation", "Stored bytes per second of the whole operation.")
STATE_KEYS: Final = _attribute("checkpoint.state.keys", "int", "operation", "Top-level keys of the state.")
KEY_NAMES: Final = _attribute(
    "checkpoint.state.key_names",
    "string[]",
    "save",
    "The largest top-level keys of the state, at most eight; `_other_` for one that is no plain name.",
)
KEY_SIZES: Final = _attribute("checkpoint.state.key_sizes", "int[]", "save", "Bytes of each of them, serialized.")
STATE_DEPTH: Final = _attribute("checkpoint.state.depth", "int", "operation", "How deep the state is nested.")
STATE_ITEMS: Final = _attribute("checkpoint.state.items", "int", "operation", "How many values the state holds.")
STATE_TYPE: Final = _attribute("checkpoint.state.type", "string", "operation", "Type of the state, such as `dict`.")
DIGEST: Final = _attribute("checkpoint.digest", "string", "operation", "Cryptographic digest of the content, `algorithm:hex`.")

TASK_NAME: Final = _attribute("checkpoint.task.name", "string", "task, operation", "Name of the task: few values, also a metric label.")
TASK_ID: Final = _attribute("checkpoint.task.id", "string", "task, operation", "Id of this run of the task; never a metric label.")
SESSION_ID: Final = _attribute("session.id", "string", "task, operation", "The user session (OpenTelemetry's name).")
USER_ID: Final = _attribute("user.id", "string", "task, operation", "The user (OpenTelemetry's name).")

PHASE: Final = _attribute("checkpoint.phase", "string", "phase", "Which phase; see Phases.")
PHASE_BYTES_IN: Final = _attribute("checkpoint.phase.bytes_in", "int", "phase", "Bytes that went in.")
PHASE_BYTES_OUT: Final = _attribute("checkpoint.phase.bytes_out", "int", "phase", "Bytes that came out.")

CPU_TIME: Final = _attribute(
    "checkpoint.resource.cpu_time", "double", "operation, phase", "CPU seconds of the calling thread; left out when it ran under 0.1 ms."
)
MEMORY_PEAK: Final = _attribute(
    "checkpoint.resource.memory_peak", "int", "operation", "Highest resident memory of the process so far, in bytes."
)
MEMORY_GROWTH: Final = _attribute(
    "checkpoint.resource.memory_growth", "int", "operation", "By how much this operation raised that peak, in bytes."
)
IO_READ: Final = _attribute("checkpoint.resource.io_read", "int", "operation", "Bytes the calling thread made the disk read.")
IO_WRITE: Final = _attribute("checkpoint.resource.io_write", "int", "operation", "Bytes the calling thread made the disk write.")

ERROR_TYPE: Final = _attribute("error.type", "string", "failed", "Class of the exception (OpenTelemetry's name).")
ERROR_CLASS: Final = _attribute("checkpoint.error.class", "string", "failed", "Closed set; see Error classes. Also a metric label.")
ERROR_CODE: Final = _attribute("checkpoint.error.code", "string", "failed", "The finer reason; see Error codes.")
ERROR_PHASE: Final = _attribute("checkpoint.error.phase", "string", "failed", "The phase in which it failed or died.")
ERROR_RETRYABLE: Final = _attribute(
    "checkpoint.error.retryable", "boolean", "failed", "Whether the same call can succeed later, unchanged."
)
ERROR_RECOVERY: Final = _attribute("checkpoint.error.recovery", "string", "failed", "What was done about it.")
ERROR_IMPACT: Final = _attribute("checkpoint.error.impact", "string", "failed", "What it means for the task.")

SOURCE_TRACE: Final = _attribute(
    "checkpoint.source.trace_id", "string", "load, restore", "Trace of the save that made the checkpoint; the span links to it too."
)
SOURCE_SPAN: Final = _attribute("checkpoint.source.span_id", "string", "load, restore", "Span of the save that made the checkpoint.")
SOURCE_AGE: Final = _attribute("checkpoint.source.age", "double", "load, restore", "Seconds since the checkpoint was saved.")
STEPS_SINCE: Final = _attribute(
    "checkpoint.source.steps_since",
    "int",
    "load, restore",
    "Steps from this checkpoint to the last save that was begun for the task, whatever became of it: the work to be done again. Left out where no such save is known.",
)
