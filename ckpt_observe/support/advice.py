"""What to do about each error code. Part of the messages of stores; shown with failed operations, and in the reference."""

from __future__ import annotations

from typing import Final

# fmt: off
ADVICE: Final = {
    "storage.io": "Check the disk and the system log. Verify the newest checkpoints before you rely on them.",
    "storage.read_only": "Mount the file system writable, or save to another place. A disk with errors is often remounted read-only: see the system log.",
    "storage.cannot_open": "Create the directory, or correct the path or the permissions.",
    "storage.closed": "Close the store after its last use, or open it again.",
    "storage.no_bucket": "Create the bucket or container, or correct its name in the URL.",
    "storage.too_many_files": "Close files that are not needed, or raise the limit (`ulimit -n`).",
    "storage.no_space": "Free some space, or keep fewer checkpoints. Earlier checkpoints can still be loaded.",
    "storage.quota": "Free some space, ask for a larger quota, or keep fewer checkpoints.",
    "storage.too_large": "Save less state, compress it, or use a store without this limit.",
    "storage.permission": "Let the user of the program read and write the store, or use a store that it may use.",
    "permission.authentication": "Correct the user, password, key or token in the settings of the store.",
    "memory.exhausted": "Save less state at once, or give the process more memory.",
    "serialization.unsupported_type": "Leave the value out of the state, convert it, or use a format that supports it.",
    "serialization.malformed": "Check with which format the checkpoint was saved. If it is damaged, load an earlier one.",
    "serialization.concurrent_change": "Do not change the state while it is saved, or save a copy of it.",
    "compression.malformed": "The checkpoint is damaged: load an earlier one.",
    "compression.bomb": "Do not trust this file: load an earlier checkpoint.",
    "integrity.checksum_mismatch": "The checkpoint is damaged: load an earlier one, and check the disk or the transfer.",
    "integrity.truncated": "The checkpoint is incomplete: load an earlier one.",
    "integrity.incomplete": "Load an earlier checkpoint. Check that nothing removes files of the store.",
    "integrity.malformed": "Load an earlier checkpoint. Check that nothing else writes to the store.",
    "integrity.size_mismatch": "The checkpoint is damaged: load an earlier one.",
    "integrity.broken_base": "Load a complete checkpoint. Check that nothing removes checkpoints that others build on.",
    "encryption.no_key": "Provide the key with which the checkpoint was saved.",
    "encryption.wrong_key": "Provide the key with which the checkpoint was saved. If it is the right one, the checkpoint was exchanged or changed.",
    "compatibility.newer_version": "Upgrade the checkpoint library to at least the version that saved the checkpoint.",
    "compatibility.unknown_format": "Install the serializer or codec that the checkpoint was saved with.",
    "compatibility.changed_program": "Run the version of the program that saved the checkpoint, or start a new run.",
    "not_found.checkpoint": "Check the task, the ID and the location. A first run has no checkpoint to load.",
    "not_found.path": "Check the path, and whether the volume is mounted.",
    "conflict.exists": "Use a new ID, or delete the checkpoint with this one.",
    "conflict.finished": "Start a new run, or choose an earlier checkpoint.",
    "conflict.in_use": "Delete the checkpoints that build on it first.",
    "conflict.stale": "Load the session or checkpoint again, and repeat the change.",
    "conflict.locked": "Repeat the call. If it happens often, let fewer processes write to the same store.",
    "timeout.deadline": "Repeat the call. If it happens often, check the load of the store, or allow more time.",
    "unavailable.connection": "Check that the server runs and can be reached from here, then repeat the call.",
    "unavailable.overloaded": "Repeat the call later, or save less often.",
    "interrupted.process_died": "Find out why the process died (out of memory, eviction, crash: see the system log), and restore the last checkpoint.",
    "cancelled.requested": "Nothing, if the program was stopped on purpose.",
    "configuration.invalid": "Correct the setting that the message names.",
    "configuration.invalid_name": "Use another name for the task or checkpoint.",
    "configuration.unsupported": "Use a call that the library or store supports.",
    "configuration.missing_extra": "Install the package that the message names.",
    "unknown.exception": "See the message and the stack of the exception. Please report its type, so that it gets a code.",
}
# fmt: on


def add_advice(message: str, code: str) -> str:
    """Return the message of an error, followed by what to do about its code."""
    return f"{message}. {ADVICE[code]}"
