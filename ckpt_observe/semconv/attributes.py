"""Span attributes. An attribute that OpenTelemetry defines has its name; all others are called `checkpoint.*`."""

from __future__ import annotations

from typing import Final, NamedTuple


class Attribute(NamedTuple):
    """An attribute: `kind` is string, int, double, boolean, string[] or int[]; `on` names the spans that carry it."""

    kind: str
    on: str
    meaning: str


ATTRIBUTES: Final[dict[str, Attribute]] = {}


def _attribute(name: str, kind: str, on: str, meaning: str) -> str:
    ATTRIBUTES[name] = Attribute(kind, on, meaning)
    return name


# fmt: off
OPERATION: Final = _attribute("checkpoint.operation", "string", "operation", "The operation; see Operations.")
ID: Final = _attribute("checkpoint.id", "string", "operation", "ID of the checkpoint in its library.")
PARENT_ID: Final = _attribute("checkpoint.parent_id", "string", "save", "ID of the checkpoint that this one follows, in its library.")
NAMESPACE: Final = _attribute("checkpoint.namespace", "string", "operation", "Part of the task that the checkpoint belongs to, such as a subgraph in LangGraph. Omitted for the task itself.")
WRITER_ID: Final = _attribute("checkpoint.writer.id", "string", "append", "ID of the part of the run that appended, such as the execution of one node.")
NODE: Final = _attribute("checkpoint.node", "string", "operation", "Node, step or function of the run that the operation belongs to.")
REASON: Final = _attribute("checkpoint.reason", "string", "save, append", "Why it was written, in the words of the library, such as `input`, `loop`, `update`, `fork`, `interrupt` or `error`.")
SAVER: Final = _attribute("checkpoint.saver", "string", "operation", "Class of the library that performed the operation, such as `SqliteSaver`.")
EXISTS: Final = _attribute("checkpoint.found", "boolean", "load", "False if there was no checkpoint to load.")
OUTCOME: Final = _attribute("checkpoint.outcome", "string", "operation, phase, task", "How it ended; see Outcomes.")
SYSTEM: Final = _attribute("checkpoint.system", "string", "operation", "The checkpoint library, such as `reference` (the bundled core), or `custom` for operations that the program records itself.")
STORE: Final = _attribute("checkpoint.store", "string", "operation", "Kind of store, such as `memory`, `file`, `sqlite`, `postgresql`, `redis` or `s3`.")
LOCATION: Final = _attribute("checkpoint.location", "string", "operation", "Path or URL of the store, without credentials.")
FORMAT: Final = _attribute("checkpoint.format", "string", "operation", "Serialization format, such as `json`, `msgpack` or `pickle`.")
STEP: Final = _attribute("checkpoint.step", "int", "operation", "Step of the run at which the checkpoint was saved.")
STATUS: Final = _attribute("checkpoint.status", "string", "operation", "Status of the run, as set by the program: `running`, `done`, or any other word.")
COUNT: Final = _attribute("checkpoint.count", "int", "operation", "Number of checkpoints that a list, prune or verify handled, or of the items or events of a session that an append, load or delete handled.")
WHOLE_TASK: Final = _attribute("checkpoint.whole_task", "boolean", "delete, prune", "True if all checkpoints of the task were deleted, such as those of a thread of LangGraph.")
RETENTION: Final = _attribute("checkpoint.retention", "boolean", "prune, delete", "True if it followed a save, because the library keeps a limited number of checkpoints; omitted if the program asked for it.")
DAMAGED_COUNT: Final = _attribute("checkpoint.damaged", "int", "verify, load, restore, drill, delete", "Number of damaged checkpoints, or items of a session, that a verify found, that a load, restore or delete skipped, or because of which it failed.")
ALTERED_KEYS: Final = _attribute("checkpoint.altered.keys", "string[]", "verify, load, restore, drill", "Keys of the state that differ from what was saved: missing, or of another type or content. Of tensors, their names.")
ALTERED_TYPES: Final = _attribute("checkpoint.altered.types", "string[]", "load, restore", "Types of the values that came back as something else. Of tensors, data type and shape as saved and as loaded, such as `float32[10] -> float16[10]`.")
ALTERED_CONTENTS: Final = _attribute("checkpoint.altered.contents", "string[]", "load", "Tensors whose content is not what was saved, according to digests of samples; only with CKPT_OBSERVE_TENSOR_DIGESTS. They are also altered keys.")
COMPARED: Final = _attribute("checkpoint.compared", "boolean", "load", "True if the tensors that were loaded were compared with those that were saved.")
INTERVAL: Final = _attribute("checkpoint.interval", "double", "task, operation", "Seconds between two saves, as declared by the program. If not declared, the metrics learn it from the saves.")

SIZE_STATE: Final = _attribute("checkpoint.size.state", "int", "operation", "Size of the state in memory in bytes, if the library knows it.")
SIZE_SERIALIZED: Final = _attribute("checkpoint.size.serialized", "int", "operation", "Bytes after serialization.")
SIZE_STORED: Final = _attribute("checkpoint.size.stored", "int", "operation", "Bytes in the store, including the header.")
SIZE_OVERHEAD: Final = _attribute("checkpoint.size.overhead", "int", "operation", "Bytes of the stored size that are not the state, but its container: the header with names, digests and seal.")
SIZE_FREED: Final = _attribute("checkpoint.size.freed", "int", "delete, prune", "Bytes that the removed checkpoints used in the store.")
CODEC: Final = _attribute("checkpoint.compression.codec", "string", "operation", "Compression codec, such as `gzip`, `zstd` or `lz4`; `none` if not compressed.")
CIPHER: Final = _attribute("checkpoint.encryption.cipher", "string", "operation", "Cipher, if the checkpoint is encrypted.")
RATIO: Final = _attribute("checkpoint.compression.ratio", "double", "operation", "What the codec achieved: bytes before / bytes after compression. Above 1 means that compression saves space. Omitted if nothing was compressed.")
THROUGHPUT: Final = _attribute("checkpoint.throughput", "double", "operation", "Stored bytes per second over the whole operation.")
STATE_KEYS: Final = _attribute("checkpoint.state.keys", "int", "operation", "Number of top-level keys of the state.")
KEY_NAMES: Final = _attribute("checkpoint.state.key_names", "string[]", "save", "The largest top-level keys of the state, at most eight; `_other_` for a key that is not a plain name.")
KEY_SIZES: Final = _attribute("checkpoint.state.key_sizes", "int[]", "save", "Serialized bytes of each of these keys.")
KEY_SIZES_SAMPLED: Final = _attribute("checkpoint.state.sampled", "boolean", "save", "True if the library stores the state as one block, so that the sizes of its keys are measured only on some saves, of which this is one.")
GROWN_KEYS: Final = _attribute("checkpoint.grown.keys", "string[]", "save", "Top-level keys of the state that grew since the previous save of the same task or path, the one that grew most first; `_other_` for all that are not among the largest.")
GROWN_SIZES: Final = _attribute("checkpoint.grown.sizes", "int[]", "save", "Bytes by which each of these keys grew, at least.")
TENSORS: Final = _attribute("checkpoint.tensors", "int", "save, load", "Number of tensors in the state.")
TENSOR_DTYPES: Final = _attribute("checkpoint.tensor.dtypes", "string[]", "save, load", "Data types of the tensors, that with the most bytes first.")
TENSOR_NAMES: Final = _attribute("checkpoint.tensor.names", "string[]", "save, load", "Paths of the largest tensors in the state, at most eight; `_other_` for a path that is not made of plain names.")
TENSOR_SIZES: Final = _attribute("checkpoint.tensor.sizes", "int[]", "save, load", "Bytes of each of these tensors. Tensors that share memory are stored once and count once.")
TENSOR_DIGESTS: Final = _attribute("checkpoint.tensor.digests", "int", "save, load", "Number of tensors of whose content a sample was digested, with CKPT_OBSERVE_TENSOR_DIGESTS.")
TENSOR_DIGESTS_SKIPPED: Final = _attribute("checkpoint.tensor.digests_skipped", "string[]", "save, load", "Why other tensors have no digest, with their number, such as `3 on device cuda`.")
STATE_DEPTH: Final = _attribute("checkpoint.state.depth", "int", "operation", "Nesting depth of the state.")
STATE_ITEMS: Final = _attribute("checkpoint.state.items", "int", "operation", "Number of values in the state.")
STATE_TYPE: Final = _attribute("checkpoint.state.type", "string", "operation", "Type of the state, such as `dict`.")
DIGEST: Final = _attribute("checkpoint.digest", "string", "operation", "Cryptographic digest of the content, `algorithm:hex`.")

TASK_NAME: Final = _attribute("checkpoint.task.name", "string", "task, operation", "Name of the task. Also a metric label, so use few different names.")
TASK_ID: Final = _attribute("checkpoint.task.id", "string", "task, operation", "ID of this run of the task; never a metric label.")
TOTAL_STEPS: Final = _attribute("checkpoint.task.total_steps", "int", "task, operation", "Number of steps of the run, as declared by the program: progress and time left follow from the steps of its saves.")
TASK_OPERATIONS: Final = _attribute("checkpoint.task.operations", "string[]", "task", "Kinds of operations that ended while the task ran, in its own process: `save`, `load`, ... Operations inside other operations and skipped ones are left out. A task whose process died has none of these attributes.")
TASK_COUNTS: Final = _attribute("checkpoint.task.counts", "int[]", "task", "Number of operations of each of these kinds.")
TASK_FAILURES: Final = _attribute("checkpoint.task.failures", "int[]", "task", "Number of operations of each of these kinds that failed.")
TASK_STORED: Final = _attribute("checkpoint.task.stored", "int", "task", "Bytes that the saves and appends among them stored.")
TASK_INFERRED: Final = _attribute("checkpoint.task.inferred", "boolean", "operation", "True if the operation began in a thread without a context, and belongs to this task because it was the only one that was running in the process.")
RUN_ID: Final = _attribute("checkpoint.run.id", "string", "task, operation", "ID of one run, if a task has several (a thread in LangGraph is invoked many times); never a metric label.")
TARGET_TASK_ID: Final = _attribute("checkpoint.target.task.id", "string", "copy", "ID of the task that the checkpoints are copied to.")
RANK: Final = _attribute("checkpoint.rank", "int", "task, operation", "Number of the process in a distributed program; see Launchers. Never a metric label: each rank would multiply all series.")
WORLD_SIZE: Final = _attribute("checkpoint.world_size", "int", "task, operation", "Number of processes of the distributed program.")
LOCAL_RANK: Final = _attribute("checkpoint.local_rank", "int", "task, operation", "Number of the process on its machine. The machine is `host.name` of the resource.")
NODE_RANK: Final = _attribute("checkpoint.node_rank", "int", "task, operation", "Number of the machine in the distributed program.")
SESSION_ID: Final = _attribute("session.id", "string", "task, operation", "The user's session (OpenTelemetry name).")
USER_ID: Final = _attribute("user.id", "string", "task, operation", "The user (OpenTelemetry name).")

RANK_SIZES: Final = _attribute("checkpoint.rank.sizes", "int[]", "save", "Bytes that each rank wrote, on the save of the coordinator (rank 0); omitted with more than 128 ranks.")
STRAGGLER_RANK: Final = _attribute("checkpoint.straggler.rank", "int", "save", "The rank that took longer than the others, on the save of the coordinator. Omitted if no rank is 1 s and 20 % slower than the median of the others.")
STRAGGLER_PHASE: Final = _attribute("checkpoint.straggler.phase", "string", "save", "The phase in which that rank was slow.")
STRAGGLER_DELAY: Final = _attribute("checkpoint.straggler.delay", "double", "save", "Seconds by which that phase of the rank took longer than the median of the others.")

PHASE: Final = _attribute("checkpoint.phase", "string", "phase", "The phase; see Phases.")
PHASE_BYTES_IN: Final = _attribute("checkpoint.phase.bytes_in", "int", "phase", "Bytes the phase received.")
PHASE_BYTES_OUT: Final = _attribute("checkpoint.phase.bytes_out", "int", "phase", "Bytes the phase produced.")
PHASE_CALLS: Final = _attribute("checkpoint.phase.calls", "int", "phase", "Number of calls that the phase sums up; its duration and bytes are their totals. Omitted for a single call.")
PHASES_DROPPED: Final = _attribute("checkpoint.phases.dropped", "int", "operation", "Number of phases that are not recorded, because the operation had more than fit into its record.")

ASYNC_BLOCKED: Final = _attribute("checkpoint.async.blocked", "double", "save", "Seconds for which an async save held up the program: in the call, and later waiting for it if the library has a method for that.")
ASYNC_RELEASED: Final = _attribute("checkpoint.async.released", "double", "save", "Seconds from the start of an async save until the program could go on and change the state. Only async saves have it.")
ASYNC_DURABLE: Final = _attribute("checkpoint.async.durable", "double", "save", "Seconds from the start of an async save until the checkpoint was durable. Omitted if it failed.")

CPU_TIME: Final = _attribute("checkpoint.resource.cpu_time", "double", "operation, phase", "CPU seconds of the calling thread; omitted for operations shorter than 0.5 ms and phases shorter than 0.1 ms.")
MEMORY_PEAK: Final = _attribute("checkpoint.resource.memory_peak", "int", "operation", "Peak resident memory of the process so far, in bytes; of an interrupted operation, at the last sign of life of the process, at most a tenth of a second before its death unless the process kept the GIL.")
MEMORY_GROWTH: Final = _attribute("checkpoint.resource.memory_growth", "int", "operation", "Bytes by which the operation raised this peak.")
IO_READ: Final = _attribute("checkpoint.resource.io_read", "int", "operation", "Bytes read from disk on behalf of the calling thread.")
IO_WRITE: Final = _attribute("checkpoint.resource.io_write", "int", "operation", "Bytes written to disk on behalf of the calling thread.")

HOOK: Final = _attribute("checkpoint.hook", "string", "event `checkpoint.hook_failed`", "Name of the hook or context provider of the program that raised an exception. The operation did not fail.")

ERROR_TYPE: Final = _attribute("error.type", "string", "failed", "Class of the exception (OpenTelemetry name).")
ERROR_CAUSE: Final = _attribute("checkpoint.error.cause", "string", "failed", "Class of the exception that explains the failure, if that is not the raised exception but its cause, its context or a member of a group.")
ERROR_CLASS: Final = _attribute("checkpoint.error.class", "string", "failed", "Error class, also a metric label; see Error classes.")
ERROR_CODE: Final = _attribute("checkpoint.error.code", "string", "failed", "Specific reason; see Error codes.")
ERROR_PHASE: Final = _attribute("checkpoint.error.phase", "string", "failed", "Phase in which the operation failed or the process died.")
ERROR_PATH: Final = _attribute("checkpoint.error.path", "string", "failed", "Path of the value in the state that caused the failure, such as `messages[3].tool`.")
ERROR_RANKS: Final = _attribute("checkpoint.error.ranks", "int[]", "failed", "Ranks that failed, if the library tells.")
ERROR_RANK_TYPES: Final = _attribute("checkpoint.error.rank_types", "string[]", "failed", "Class of the exception of each of these ranks.")
ERROR_RETRYABLE: Final = _attribute("checkpoint.error.retryable", "boolean", "failed", "Whether the same call may succeed if it is retried.")
ERROR_RECOVERY: Final = _attribute("checkpoint.error.recovery", "string", "failed", "What was done to recover, if anything.")
ERROR_IMPACT: Final = _attribute("checkpoint.error.impact", "string", "failed", "Consequences for the task, if known.")
CONTROL_FLOW: Final = _attribute("checkpoint.control_flow", "string", "operation, phase, task", "Class of the exception with which the library left the operation on purpose, such as `GraphInterrupt` for a pause. The outcome is not an error.")

SOURCE_TRACE: Final = _attribute("checkpoint.source.trace_id", "string", "load, restore", "Trace ID of the save that created the checkpoint, if it was sampled; the span also has a link to it.")
SOURCE_SPAN: Final = _attribute("checkpoint.source.span_id", "string", "load, restore", "Span ID of the save that created the checkpoint.")
SOURCE_AGE: Final = _attribute("checkpoint.source.age", "double", "load, restore, drill", "Seconds between the save of the checkpoint and its load, restore or drill.")
STEPS_SINCE: Final = _attribute("checkpoint.source.steps_since", "int", "load, restore", "Steps that must be repeated: from this checkpoint to the last save that was started for the task, whether it succeeded or not. Omitted if no such save is known.")
# fmt: on
