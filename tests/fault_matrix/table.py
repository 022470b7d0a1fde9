"""The expected diagnosis of each fault, by store and action. Written before the faults are injected; a mismatch is a bug or a decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

STORES: Final = ("file", "jsonl", "sqlite", "git", "memory", "postgresql", "redis", "s3")
SERVERS: Final = frozenset({"postgresql", "redis", "s3"})
ACTIONS: Final = ("save", "load", "async", "background", "batch")
"""`save` and `load` of a Checkpointer, and saves by AsyncCheckpointer, BackgroundCheckpointer and `batch`."""

INJECTIONS: Final = {
    "full_disk": "a full file system (tmpfs)",
    "full_tablespace": "a tablespace on a full file system",
    "full_append_log": "a server whose append-only file is on a full file system",
    "full_bucket": "a server whose file system is full",
    "quota_error": "`EDQUOT` at a system call (strace)",
    "read_only_disk": "a file system that was mounted again read-only",
    "read_only_role": "a role whose transactions are read-only, as on a standby",
    "read_only_replica": "a replica",
    "other_user": "a process of another user",
    "other_role": "a role, user or account without rights",
    "io_error": "`EIO` at a system call (strace)",
    "failing_bucket": "a server that answers with 500, because its file system was mounted again read-only",
    "io_error_in_server": "an I/O error of the server, raised by a trigger",
    "timeout_error": "`ETIMEDOUT` at a system call, as on NFS (strace)",
    "stuck_git": "a system call of git that takes longer than its time limit (strace)",
    "silent_server": "a proxy that stops forwarding",
    "silent_body": "a proxy that stops forwarding in the middle of the checkpoint",
    "cut_connection": "a proxy that closes the connection",
    "cut_body": "a proxy that closes the connection in the middle of the checkpoint",
    "wrong_password": "a wrong password or secret key",
    "held_lock": "another program that holds the lock",
    "existing_id": "an id that exists",
    "missing_id": "an id that does not exist",
    "damaged_header": "a changed byte in the header",
    "damaged_payload": "a changed byte in the state",
    "truncated": "a checkpoint without its last bytes",
    "newer_version": "a header of a later version",
    "unserializable": "an object that the format does not support",
    "little_memory": "a limit of the address space (`RLIMIT_AS`)",
    "server_out_of_memory": "a server that has reached `maxmemory`",
    "ctrl_c": "`SIGINT` while a value is serialized or deserialized",
    "killed": "`SIGKILL` while a value is serialized or deserialized",
    "killed_in_write": "`SIGKILL` at a system call (strace)",
    "wrapped": "a store of the program that raises its own exception `from` the store's",
}
"""How faults are injected. The function of this name in `injections` does it."""


class Row(NamedTuple):
    """The cells of one fault that have the same expectation: each of these actions on each of these stores, separated by spaces."""

    fault: str
    injection: str
    stores: str
    actions: str
    code: str
    phase: str


class Cell(NamedTuple):
    """One fault, in one action on one store, and the expected code and phase of the operation."""

    fault: str
    injection: str
    store: str
    action: str
    code: str
    phase: str

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.store}-{self.action}".replace(" ", "_")


_ALL = " ".join(STORES)
_LOCAL = "file jsonl sqlite git"
_REMOTE = "postgresql redis s3"
_PICKLES = "file sqlite git memory postgresql redis s3"
"""Stores that accept any format. JSON Lines are always JSON, whose serializer runs no code of the program."""
_LATER = "async background batch"

ROWS: Final = (
    Row("no space", "full_disk", _LOCAL, "save", "storage.no_space", "write"),
    Row("no space", "full_disk", "file sqlite", _LATER, "storage.no_space", "write"),
    Row("no space", "full_tablespace", "postgresql", "save", "storage.no_space", "write"),
    Row("no space", "full_append_log", "redis", "save", "storage.no_space", "write"),
    Row("no space", "full_bucket", "s3", "save", "storage.no_space", "write"),
    Row("quota", "quota_error", "file jsonl git", "save", "storage.quota", "write"),
    # Python's sqlite3 does not pass on errno.
    Row("quota", "quota_error", "sqlite", "save", "storage.io", "write"),
    Row("read-only", "read_only_disk", _LOCAL, "save", "storage.read_only", "write"),
    Row("read-only", "read_only_disk", "file sqlite", _LATER, "storage.read_only", "write"),
    Row("read-only", "read_only_role", "postgresql", "save", "storage.read_only", "write"),
    Row("read-only", "read_only_replica", "redis", "save", "storage.read_only", "write"),
    Row("permission", "other_user", _LOCAL, "save", "storage.permission", "write"),
    Row("permission", "other_user", _LOCAL, "load", "storage.permission", "read"),
    Row("permission", "other_role", _REMOTE, "save", "storage.permission", "write"),
    Row("permission", "other_role", _REMOTE, "load", "storage.permission", "read"),
    Row("I/O error", "io_error", _LOCAL, "save", "storage.io", "write"),
    Row("I/O error", "io_error", _LOCAL, "load", "storage.io", "read"),
    Row("I/O error", "io_error_in_server", "postgresql", "save", "storage.io", "write"),
    Row("I/O error", "failing_bucket", "s3", "save", "storage.io", "write"),
    Row("timeout", "timeout_error", "file jsonl", "save", "timeout.deadline", "write"),
    Row("timeout", "timeout_error", "file jsonl", "load", "timeout.deadline", "read"),
    Row("timeout", "stuck_git", "git", "save", "timeout.deadline", "write"),
    Row("timeout", "silent_server", _REMOTE, "save", "timeout.deadline", "write"),
    Row("timeout", "silent_server", _REMOTE, "load", "timeout.deadline", "read"),
    Row("timeout in the body", "silent_body", _REMOTE, "load", "timeout.deadline", "read"),
    Row("connection lost", "cut_connection", _REMOTE, "save", "unavailable.connection", "write"),
    Row("connection lost", "cut_connection", _REMOTE, "load", "unavailable.connection", "read"),
    Row("connection lost", "cut_connection", "postgresql redis", _LATER, "unavailable.connection", "write"),
    Row("connection lost in the body", "cut_body", _REMOTE, "load", "unavailable.connection", "read"),
    Row("authentication", "wrong_password", _REMOTE, "save", "permission.authentication", "write"),
    Row("authentication", "wrong_password", _REMOTE, "load", "permission.authentication", "read"),
    Row("locked", "held_lock", "sqlite git postgresql", "save", "conflict.locked", "write"),
    Row("locked", "held_lock", "sqlite postgresql", "load", "conflict.locked", "read"),
    Row("conflict", "existing_id", _ALL, "save", "conflict.exists", "write"),
    Row("conflict", "existing_id", "file sqlite memory", _LATER, "conflict.exists", "write"),
    Row("not found", "missing_id", _ALL, "load", "not_found.checkpoint", "read"),
    Row("damaged header", "damaged_header", _ALL, "load", "integrity.checksum_mismatch", "validate"),
    Row("damaged payload", "damaged_payload", _ALL, "load", "integrity.checksum_mismatch", "validate"),
    Row("truncated", "truncated", _ALL, "load", "integrity.truncated", "validate"),
    Row("wrong version", "newer_version", _ALL, "load", "compatibility.newer_version", "validate"),
    Row("unserializable", "unserializable", _ALL, "save", "serialization.unsupported_type", "serialize"),
    Row("unserializable", "unserializable", "file", _LATER, "serialization.unsupported_type", "serialize"),
    Row("out of memory", "little_memory", _ALL, "save", "memory.exhausted", "serialize"),
    Row("out of memory", "little_memory", "file", _LATER, "memory.exhausted", "serialize"),
    Row("out of memory", "little_memory", _PICKLES, "load", "memory.exhausted", "decompress"),
    Row("out of memory on the server", "server_out_of_memory", "redis", "save", "memory.exhausted", "write"),
    Row("cancelled", "ctrl_c", _PICKLES, "save", "cancelled.requested", "serialize"),
    Row("cancelled", "ctrl_c", "file", "background batch", "cancelled.requested", "serialize"),
    Row("cancelled", "ctrl_c", _PICKLES, "load", "cancelled.requested", "deserialize"),
    Row("killed", "killed", _PICKLES, "save", "interrupted.process_died", "serialize"),
    Row("killed", "killed", "file", _LATER, "interrupted.process_died", "serialize"),
    Row("killed", "killed", _PICKLES, "load", "interrupted.process_died", "deserialize"),
    Row("killed while writing", "killed_in_write", "file jsonl", "save background batch", "interrupted.process_died", "write"),
    Row("wrapped cause", "wrapped", _ALL, "save", "conflict.exists", "write"),
    Row("wrapped cause", "wrapped", _ALL, "load", "not_found.checkpoint", "read"),
)

CONTROL: Final = Cell("conflict", "existing_id", "memory", "save", "conflict.locked", "serialize")
"""Expects the wrong code and phase. It must be reported as a mismatch; otherwise the comparison is broken."""


def cells(*injections: str, servers: bool | None = None) -> Iterator[Cell]:
    """Yield all cells, or those with these injections; with `servers`, only those whose store is, or is not, on a server."""
    for row in ROWS:
        for store in row.stores.split():
            if (injections and row.injection not in injections) or servers not in (None, store in SERVERS):
                continue
            for action in row.actions.split():
                yield Cell(row.fault, row.injection, store, action, row.code, row.phase)
