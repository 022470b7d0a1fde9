"""The names of operations, phases, outcomes, error classes and error codes. All sets are closed, except that programs may add phases."""

from __future__ import annotations

from typing import Final, NamedTuple

OPERATIONS: Final = {
    "save": "Store a state durably as a new checkpoint.",
    "load": "Read a checkpoint back as a state.",
    "restore": "Put a run back to the point of a checkpoint: load it, then apply it.",
    "delete": "Remove a checkpoint.",
    "list": "List the checkpoints of a task.",
    "prune": "Remove the checkpoints that the retention policy does not keep.",
    "verify": "Read and check stored checkpoints without using them.",
    "append": "Add to a checkpoint or session without storing the whole state: pending writes, events, items, results of steps.",
    "copy": "Copy the checkpoints of one task to another.",
    "drill": "Rehearse a restart: read and check the newest checkpoint of a task as a restore would, without using it.",
}

PHASES: Final = {  # append only: the position of a phase is its code in the journal
    "stage": "Copy the state so that the program can go on changing it (for example from GPU to CPU memory).",
    "serialize": "Turn the state into bytes.",
    "compress": "Compress the bytes.",
    "encrypt": "Encrypt the bytes.",
    "write": "Write the bytes to the store and make them durable.",
    "commit": "Make the written bytes visible as the new checkpoint.",
    "validate": "Compare what is stored with what was saved.",
    "read": "Read the bytes from the store.",
    "decrypt": "Decrypt the bytes.",
    "decompress": "Decompress the bytes.",
    "deserialize": "Turn the bytes into a state.",
    "apply": "Put the state into the running program.",
    "wait": "Wait for a lock, a connection, or work in another thread, such as the previous save.",
    "plan": "Decide which process writes or reads what.",
    "finalize": "Complete the file: write its directory and checksums, and close it.",
    "digest": "Compute the digests and the header of the checkpoint.",
    "retain": "Apply the retention policy. The checkpoint of the save is already durable.",
    "remove": "Remove checkpoints from the store.",
    "hook": "Run functions that the program has registered for this operation.",
}

OUTCOMES: Final = {
    "ok": "Succeeded.",
    "error": "Failed; the caller got the error.",
    "interrupted": "The process died during the operation (`kill -9`, out of memory, power failure), so no error could be raised.",
    "cancelled": "Stopped on purpose (Ctrl-C, cancelled task, exit).",
    "skipped": "Nothing had to be done, for example because of a policy.",
}


class ErrorCode(NamedTuple):
    """The specific reason for a failure, within an error class."""

    error_class: str
    retryable: bool
    meaning: str


ERROR_CLASSES: Final = {
    "storage": "The storage failed: I/O error, broken file system, closed store.",
    "serialization": "The state cannot be turned into bytes, or the bytes into a state.",
    "compression": "A codec failed, or the result exceeded its size limit.",
    "integrity": "The stored bytes are not the bytes that were saved.",
    "compatibility": "Written with a version, format or library that this one cannot read.",
    "not_found": "The checkpoint does not exist.",
    "conflict": "Another writer was first, or holds the lock.",
    "timeout": "The operation took longer than allowed.",
    "unavailable": "The store or its server cannot be reached.",
    "permission": "Access was denied.",
    "capacity": "No space, no memory, no quota left.",
    "interrupted": "The process died during the operation.",
    "cancelled": "The operation was stopped on purpose.",
    "configuration": "A setting is wrong.",
    "unknown": "The exception is not in any error table. Please report its type.",
}

# fmt: off
ERROR_CODES: Final = {
    "storage.io": ErrorCode("storage", True, "The device or file system reported an I/O error."),
    "storage.read_only": ErrorCode("storage", False, "The file system is mounted read-only."),
    "storage.cannot_open": ErrorCode("storage", False, "The file of the store cannot be opened: it or its directory is missing, or this user may not access it."),
    "storage.closed": ErrorCode("storage", False, "The store was used after it was closed."),
    "storage.no_bucket": ErrorCode("storage", False, "The bucket or container of the object store does not exist."),
    "storage.too_many_files": ErrorCode("storage", True, "The process or the system has run out of file descriptors."),
    "storage.no_space": ErrorCode("capacity", False, "The file system is full."),
    "storage.quota": ErrorCode("capacity", False, "The disk quota is used up."),
    "storage.too_large": ErrorCode("capacity", False, "The checkpoint is larger than the store or file system allows."),
    "storage.permission": ErrorCode("permission", False, "This user may not read or write the store."),
    "permission.authentication": ErrorCode("permission", False, "The server did not accept the user, password, key or token."),
    "memory.exhausted": ErrorCode("capacity", False, "The process could not allocate memory."),
    "serialization.unsupported_type": ErrorCode("serialization", False, "The state contains a value that the format cannot represent."),
    "serialization.malformed": ErrorCode("serialization", False, "The bytes cannot be decoded in the declared format."),
    "serialization.concurrent_change": ErrorCode("serialization", True, "The program changed the state while it was serialized."),
    "compression.malformed": ErrorCode("compression", False, "The compressed bytes cannot be decompressed."),
    "compression.bomb": ErrorCode("compression", False, "The decompressed data would exceed the size that the checkpoint declares."),
    "integrity.checksum_mismatch": ErrorCode("integrity", False, "The digest of the stored bytes differs from the recorded digest."),
    "integrity.truncated": ErrorCode("integrity", False, "The stored bytes end too early."),
    "integrity.incomplete": ErrorCode("integrity", False, "Parts of the checkpoint are missing: the process that saved it was stopped, or somebody removed them."),
    "integrity.malformed": ErrorCode("integrity", False, "The stored bytes are not a checkpoint."),
    "integrity.size_mismatch": ErrorCode("integrity", False, "The size of the stored bytes differs from the recorded size."),
    "integrity.broken_base": ErrorCode("integrity", False, "An earlier checkpoint that this one builds on is gone or has changed."),
    "encryption.no_key": ErrorCode("permission", False, "The checkpoint is encrypted and no key was provided."),
    "encryption.wrong_key": ErrorCode("permission", False, "The key cannot decrypt the checkpoint, or the payload belongs to another checkpoint."),
    "compatibility.newer_version": ErrorCode("compatibility", False, "Written with a newer version of the format."),
    "compatibility.unknown_format": ErrorCode("compatibility", False, "Written with a serializer or codec that is not installed."),
    "compatibility.changed_program": ErrorCode("compatibility", False, "The program has changed since the checkpoint was saved and cannot continue from it."),
    "not_found.checkpoint": ErrorCode("not_found", False, "The task has no checkpoint with this ID."),
    "not_found.path": ErrorCode("not_found", False, "A file or directory is missing."),
    "conflict.exists": ErrorCode("conflict", False, "A checkpoint with this ID already exists."),
    "conflict.finished": ErrorCode("conflict", False, "The run has finished; there is nothing to resume."),
    "conflict.in_use": ErrorCode("conflict", False, "Another checkpoint builds on this one."),
    "conflict.stale": ErrorCode("conflict", False, "Another writer changed the session or checkpoint after it was loaded; it must be loaded again."),
    "conflict.locked": ErrorCode("conflict", True, "Another process or thread holds the lock."),
    "timeout.deadline": ErrorCode("timeout", True, "The deadline passed."),
    "unavailable.connection": ErrorCode("unavailable", True, "The connection was refused, reset or could not be made."),
    "unavailable.overloaded": ErrorCode("unavailable", True, "The server refuses requests for now: there are too many, or it is starting."),
    "interrupted.process_died": ErrorCode("interrupted", True, "The process was killed or crashed during the operation."),
    "cancelled.requested": ErrorCode("cancelled", True, "The caller or the user cancelled the operation."),
    "configuration.invalid": ErrorCode("configuration", False, "A setting has an invalid value, such as a path or URL, or the store is not set up, such as a missing table."),
    "configuration.invalid_name": ErrorCode("configuration", False, "The name of a task or checkpoint is invalid."),
    "configuration.unsupported": ErrorCode("configuration", False, "The library or store does not support this call, such as a synchronous call on the event loop."),
    "configuration.missing_extra": ErrorCode("configuration", False, "An optional package is not installed."),
    "unknown.exception": ErrorCode("unknown", False, "The exception is not in any error table."),
}
# fmt: on
