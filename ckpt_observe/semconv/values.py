"""The closed sets: what an operation, phase, outcome or error class may be. Metric labels come only from these."""

from __future__ import annotations

from typing import Final, NamedTuple

OPERATIONS: Final = {
    "save": "A state is made durable as a new checkpoint.",
    "load": "A checkpoint is read back as a state.",
    "restore": "A run is put back to where a checkpoint left it: load, then apply.",
    "delete": "A checkpoint is removed.",
    "list": "The checkpoints of a task are enumerated.",
    "prune": "Checkpoints that the retention policy no longer keeps are removed.",
    "verify": "Stored checkpoints are read and checked without being used.",
}

PHASES: Final = {  # append only: the position is the phase's code in the journal
    "stage": "The state is copied out of the way (device to host, live to frozen).",
    "serialize": "The state becomes bytes.",
    "compress": "The bytes become fewer.",
    "encrypt": "The bytes become unreadable to others.",
    "write": "The bytes reach the store and are durable.",
    "commit": "What was written becomes the visible checkpoint.",
    "validate": "What is stored is compared with what was meant.",
    "read": "The bytes come from the store.",
    "decrypt": "The bytes become readable again.",
    "decompress": "The bytes become as many as they were.",
    "deserialize": "The bytes become a state.",
    "apply": "The state is put into the running program.",
    "wait": "The caller waits for work that another thread does.",
}

OUTCOMES: Final = {
    "ok": "It did what was asked.",
    "error": "It failed, and the caller was told.",
    "interrupted": "The process died in the middle (kill -9, out of memory, power): nobody could be told.",
    "cancelled": "It was stopped on purpose (Ctrl-C, cancelled task, exit).",
    "skipped": "There was nothing to do, by policy.",
}


class ErrorCode(NamedTuple):
    """A finer reason within an error class."""

    error_class: str
    retryable: bool
    meaning: str


ERROR_CLASSES: Final = {
    "storage": "The medium refused: I/O error, broken file system, closed store.",
    "serialization": "The state could not become bytes, or the bytes no state.",
    "compression": "A codec refused, or the result grew beyond its bound.",
    "integrity": "Stored bytes are not the bytes that were saved.",
    "compatibility": "Written by a version, format or library that this one cannot read.",
    "not_found": "There is no such checkpoint.",
    "conflict": "Somebody else wrote the same thing first, or holds the lock.",
    "timeout": "It took longer than allowed.",
    "unavailable": "The store or its server cannot be reached.",
    "permission": "Not allowed.",
    "capacity": "No space, no memory, no quota left.",
    "interrupted": "The process died in the middle.",
    "cancelled": "It was stopped on purpose.",
    "configuration": "A setting is wrong.",
    "unknown": "Nothing is known about this exception: please report its type.",
}

ERROR_CODES: Final = {
    "storage.io": ErrorCode("storage", True, "The device or file system reported an I/O error."),
    "storage.read_only": ErrorCode("storage", False, "The file system is mounted read-only."),
    "storage.closed": ErrorCode("storage", False, "The store was used after it was closed."),
    "storage.no_bucket": ErrorCode("storage", False, "The bucket or container of an object store is not there."),
    "storage.too_many_files": ErrorCode("storage", True, "The process or system has no file descriptor left."),
    "storage.no_space": ErrorCode("capacity", False, "The file system is full."),
    "storage.quota": ErrorCode("capacity", False, "The disk quota is used up."),
    "storage.too_large": ErrorCode("capacity", False, "The checkpoint is larger than the store or file system takes."),
    "storage.permission": ErrorCode("permission", False, "The store may not be read or written by this user."),
    "memory.exhausted": ErrorCode("capacity", False, "The process could not allocate memory."),
    "serialization.unsupported_type": ErrorCode("serialization", False, "The state holds a value that the format cannot carry."),
    "serialization.malformed": ErrorCode("serialization", False, "The bytes do not decode as the format they claim."),
    "compression.malformed": ErrorCode("compression", False, "The compressed bytes do not decompress."),
    "compression.bomb": ErrorCode("compression", False, "Decompression would exceed the size that the checkpoint declares."),
    "integrity.checksum_mismatch": ErrorCode("integrity", False, "The digest of the stored bytes is not the one recorded."),
    "integrity.truncated": ErrorCode("integrity", False, "The stored bytes end too early."),
    "integrity.malformed": ErrorCode("integrity", False, "The stored bytes are not a checkpoint."),
    "integrity.size_mismatch": ErrorCode("integrity", False, "The stored bytes are more or fewer than recorded."),
    "integrity.broken_base": ErrorCode("integrity", False, "An earlier checkpoint that this one is built on is gone or altered."),
    "encryption.no_key": ErrorCode("permission", False, "The checkpoint is encrypted and no key was given."),
    "encryption.wrong_key": ErrorCode("permission", False, "The key does not open the checkpoint, or its payload was moved."),
    "compatibility.newer_version": ErrorCode("compatibility", False, "Written by a newer version of the format."),
    "compatibility.unknown_format": ErrorCode("compatibility", False, "Written with a serializer or codec that is not here."),
    "not_found.checkpoint": ErrorCode("not_found", False, "There is no checkpoint of that task and id."),
    "not_found.path": ErrorCode("not_found", False, "A file or directory is missing."),
    "conflict.exists": ErrorCode("conflict", False, "A checkpoint of that id exists already."),
    "conflict.finished": ErrorCode("conflict", False, "The run is at its end: there is nothing to resume."),
    "conflict.in_use": ErrorCode("conflict", False, "Another checkpoint is built on this one."),
    "conflict.locked": ErrorCode("conflict", True, "Somebody else holds the lock."),
    "timeout.deadline": ErrorCode("timeout", True, "The deadline passed."),
    "unavailable.connection": ErrorCode("unavailable", True, "The connection was refused, reset or never made."),
    "interrupted.process_died": ErrorCode("interrupted", True, "The process ended without a word while the operation ran."),
    "cancelled.requested": ErrorCode("cancelled", True, "The caller or the user stopped it."),
    "configuration.invalid": ErrorCode("configuration", False, "A setting has a value that cannot be."),
    "configuration.invalid_name": ErrorCode("configuration", False, "A task or checkpoint cannot have that name."),
    "configuration.missing_extra": ErrorCode("configuration", False, "An optional package is not installed."),
    "unknown.exception": ErrorCode("unknown", False, "An exception that no table names."),
}
