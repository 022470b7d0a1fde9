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
_FILE_TASK: Final = (
    "The task: {} knows only a file. Put `ckpt_observe.task` around the calls to see how old the last checkpoint of a task is."
)
_TENSORS: Final = dict.fromkeys((
    names.TENSORS, names.TENSOR_DTYPES, names.TENSOR_NAMES, names.TENSOR_SIZES, names.KEY_NAMES, names.KEY_SIZES,
), "")  # fmt: skip
_LIGHTNING: Final = LibraryNotes(
    {
        names.SYSTEM: "`lightning`",
        names.STORE: "`file`, or the scheme of a URL such as `s3`",
        names.SAVER: "class of the `CheckpointIO`, or `Fabric`",
        names.TASK_NAME: "class of the model",
        names.TASK_ID: "absolute path of `default_root_dir`, unless it is the current directory",
        names.LOCATION: "directory of the checkpoint",
        names.ID: "absolute path or URL of the checkpoint",
        names.STEP: "`global_step`; of Fabric, `step` of the state",
        names.FORMAT: "`torch`",
        names.SIZE_STORED: "of a local file or directory, in the main process",
        names.SIZE_FREED: "",
        names.ALTERED_KEYS: "parameters that the checkpoint or the model lacks, if the model accepts that (`strict=False`)",
    },
    (
        "Sizes of checkpoints in object stores.",
        "That an error of `AsyncCheckpointIO` is an old one when Lightning raises it again: the next save is recorded as failed, too.",
        "Runs of `validate`, `test` and `predict` without a checkpoint.",
        "Contents of the state.",
    ),
)
# fmt: off
NOTES: Final = {
    "reference": LibraryNotes(
        dict.fromkeys((
            names.SYSTEM, names.STORE, names.LOCATION, names.FORMAT, names.CODEC, names.CIPHER, names.TASK_NAME, names.TASK_ID, names.ID,
            names.STEP, names.STATUS, names.COUNT, names.DAMAGED_COUNT, names.ALTERED_KEYS, names.SIZE_SERIALIZED, names.SIZE_STORED,
            names.SIZE_OVERHEAD, names.SIZE_FREED, names.STATE_TYPE, names.STATE_KEYS, names.STATE_ITEMS, names.STATE_DEPTH,
            names.KEY_NAMES, names.KEY_SIZES, names.DIGEST, names.SOURCE_TRACE, names.SOURCE_SPAN, names.SOURCE_AGE, names.ERROR_CAUSE,
            names.HOOK,
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
    "torch": LibraryNotes(
        {
            names.SYSTEM: "`torch`",
            names.STORE: "`file`",
            names.FORMAT: "`torch`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file",
            names.STEP: "`global_step`, `step` or `iteration` of the state, if it is an integer",
            names.SIZE_STORED: "size of the file, if torch opened it",
            names.SIZE_SERIALIZED: "bytes of the pickle and of the tensors",
            **_TENSORS,
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "Copies from GPU memory during a save, as a phase of their own: they are between the writes.",
            "Bytes that are read when a tensor of a load with `mmap=True` is used for the first time.",
            "Damaged tensors: `torch.load` does not check them. `torch.jit.save` and `torch.package`.",
            _FILE_TASK.format("torch.save"),
        ),
    ),
    "torch-dcp": LibraryNotes(
        {
            names.SYSTEM: "`torch.dcp`",
            names.STORE: "`file` or `fsspec`",
            names.FORMAT: "`dcp`",
            names.SAVER: "class of the storage writer or reader, if the program passed one",
            names.ID: "absolute path or URL of the checkpoint, by which a load finds its save",
            names.LOCATION: "path or URL of the checkpoint",
            names.STEP: "`global_step`, `step` or `iteration` of the state, or the number at the end of the path",
            names.RANK: "",
            names.WORLD_SIZE: "",
            names.SIZE_STORED: "bytes that this rank wrote",
            names.RANK_SIZES: "",
            names.STRAGGLER_RANK: "",
            names.STRAGGLER_PHASE: "`plan`, `stage` or `write`",
            names.STRAGGLER_DELAY: "",
            names.ASYNC_BLOCKED: "time in `async_save`",
            names.ASYNC_RELEASED: "when `async_save` returned and the state was staged",
            names.ASYNC_DURABLE: "",
            **_TENSORS,
            names.ERROR_RANKS: "ranks in the `CheckpointException`",
            names.ERROR_RANK_TYPES: "",
        },
        (
            "The time that a program waits for the future of an `async_save`, in the blocked time: it is a plain future.",
            "Phases of an `async_save` that runs in another process. Its bytes are known.",
            "One trace for ranks with a task each: they are in the trace of their task. Start them in a task or with `ckpt-observe run`.",
            "Stragglers of loads. `torch.distributed.checkpoint.state_dict` (collecting a state), `_experimental`.",
            "Tensors that a storage writer of the program saves in threads of its own: each is a save of torch.",
        ),
    ),
    "safetensors": LibraryNotes(
        {
            names.SYSTEM: "`safetensors`",
            names.STORE: "`file`",
            names.FORMAT: "`safetensors`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file",
            names.SIZE_STORED: "size of the file",
            **_TENSORS,
            names.ERROR_IMPACT: "whether a failed save changed the file that was there before",
        },
        (
            "`safe_open`, which reads single tensors and is a type written in Rust. `load_file` and `load_model` use it and are observed.",
            "`save` and `load`, which only convert to and from bytes.",
            "`safetensors.flax`, `safetensors.tensorflow` and others, as far as they do not use the functions for NumPy.",
            _FILE_TASK.format("safetensors"),
        ),
    ),
    "transformers": LibraryNotes(
        {
            names.SYSTEM: "`transformers`",
            names.STORE: "`file`",
            names.SAVER: "class of the Trainer",
            names.TASK_NAME: "class of the Trainer",
            names.TASK_ID: "absolute path of `output_dir`",
            names.LOCATION: "absolute path of `output_dir`",
            names.ID: "absolute path of the checkpoint",
            names.STEP: "`global_step`",
            names.REASON: "`save_model` or `best_model`; missing for the checkpoints of a run",
            names.FORMAT: "",
            names.SIZE_STORED: "all files of the checkpoint, in the process that writes them",
            names.KEY_NAMES: "the largest files",
            names.KEY_SIZES: "",
            names.ALTERED_KEYS: "parameters that the checkpoint or the model lacks; `optimizer`, `scheduler`, `rng_state` without a file",
            names.COUNT: "checkpoints that `save_total_limit` removed",
            names.SIZE_FREED: "",
        },
        (
            "`from_pretrained` and `save_pretrained`, because pretrained weights are not a checkpoint of the run.",
            "`train(resume_from_checkpoint=True)` without a checkpoint: the Trainer raises `ValueError` before it reads anything.",
            "Uploads to the Hub.",
            "In distributed training, the size of the files that processes other than the main one write.",
            "Contents of the state.",
        ),
    ),
    "accelerate": LibraryNotes(
        {
            names.SYSTEM: "`accelerate`",
            names.STORE: "`file`",
            names.SAVER: "class of the accelerator",
            names.LOCATION: "directory that contains the checkpoint",
            names.ID: "absolute path of the checkpoint",
            names.STEP: "number of the checkpoint, with automatic names",
            names.FORMAT: "`safetensors` or `pickle`",
            names.SIZE_STORED: "all files of the checkpoint, in the main process",
            names.KEY_NAMES: "the largest files",
            names.KEY_SIZES: "",
            names.ALTERED_KEYS: "`random_states` if they could not be loaded, which Accelerate only logs",
        },
        (
            _TASK,
            "`save_model` and `load_checkpoint_in_model`, because a model without the rest of the state is not a checkpoint of the run.",
            "Checkpoints that `total_limit` removes.",
            "In distributed training, the size of the files that processes other than the main one write.",
            "Contents of the state.",
        ),
    ),
    "lightning": _LIGHTNING,
    "pytorch-lightning": _LIGHTNING,
    "orbax": LibraryNotes(
        {
            names.SYSTEM: "`orbax`",
            names.STORE: "`file`, or the scheme of a URL such as `gs`",
            names.SAVER: "class of the manager or checkpointer",
            names.LOCATION: "directory of the manager, or that contains the checkpoint",
            names.ID: "absolute path or URL of the checkpoint",
            names.STEP: "step of the manager",
            names.SIZE_STORED: "all files of a checkpoint on a local file system",
            names.KEY_NAMES: "the largest files",
            names.KEY_SIZES: "",
            names.ALTERED_KEYS: "",
        },
        (
            _TASK,
            "Calls of `CheckpointManager.save` that save nothing.",
            "Checkpoints that the manager removes in the background.",
            "`save`, `load` and `save_async` of `orbax.checkpoint.experimental.v1`. Its `training.Checkpointer` uses the manager.",
            "Bytes per host: each host reports the whole directory. Saves of several hosts are not tested.",
            "Contents of the state.",
        ),
    ),
    "joblib": LibraryNotes(
        {
            names.SYSTEM: "`joblib`",
            names.STORE: "`file`",
            names.FORMAT: "`pickle`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file",
            names.SIZE_STORED: "size of the file, if joblib opened it",
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "`joblib.Memory` and the files through which joblib passes arrays to workers, because they are caches.",
            _FILE_TASK.format("joblib"),
        ),
    ),
    "numpy": LibraryNotes(
        {
            names.SYSTEM: "`numpy`",
            names.STORE: "`file`",
            names.FORMAT: "of a save `npy` or `npz`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file, with the suffix that NumPy appends",
            names.SIZE_STORED: "size of the file, if NumPy opened it",
            **_TENSORS,
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "Arrays of an `.npz` file, which are read when they are used. Arrays that `savez` gets without a name are not described.",
            "`numpy.savetxt`, `ndarray.tofile`, `numpy.memmap` and `numpy.load` by name in modules that were imported before.",
            _FILE_TASK.format("NumPy"),
        ),
    ),
}
# fmt: on
