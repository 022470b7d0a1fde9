"""Remembers a little about the latest saves across processes: the sizes of their keys, and the types of their tensors.

A load is compared with its save, and a save with the previous one, which are often in other processes. The details are in the file of the
index of saves, in a table that has far fewer rows, because a row may have some 20 kB.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ckpt_observe.delivery.save_index import SaveIndex

MAX_DETAILS: Final = 1000
"""Rows in the file, the latest ones: usually less than 1 MB, at most about 25 MB."""
_PRUNE_INTERVAL: Final = 100
"""Rows that are added between two checks of the limit."""
_MAX_UNWRITTEN: Final = 64
"""Rows in memory while the file is locked, or if there is none."""
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


DetailKey: TypeAlias = tuple[str, ...]
"""What identifies details. The first part says which details they are."""


class Detail(NamedTuple):
    """What is known about a save, and the time of the save in Unix nanoseconds."""

    unix_nano: int
    content: dict[str, Any]


class SaveDetails:
    """The details of the saves of all processes of a state directory. Called from any thread."""

    def __init__(self, index: SaveIndex) -> None:
        self._index = index
        self._lock = threading.RLock()  # re-entrant: a signal handler that saves a checkpoint may collect pages, too
        self._unwritten: dict[DetailKey, Detail] = {}
        self._added = 0

    def put(self, key: DetailKey, detail: Detail) -> None:
        """Remember the details of a save, and write them to the file with the next `write`: once, if they change again before that."""
        with self._lock:
            self._unwritten.pop(key, None)
            self._unwritten[key] = detail
            if len(self._unwritten) > _MAX_UNWRITTEN:
                self.write()
            if len(self._unwritten) > _MAX_UNWRITTEN:  # the file cannot be written
                del self._unwritten[next(iter(self._unwritten))]

    def find(self, key: DetailKey) -> Detail | None:
        """Return the details of a save, or None."""
        with self._lock:
            detail = self._unwritten.get(key)
            rows = self._index.run("SELECT time, content FROM detail WHERE key = ?", (_hash(key),)) if detail is None else None
        try:
            return Detail(rows[0][0], _decode(rows[0][1])) if rows else detail
        except (msgspec.DecodeError, TypeError):  # the file is damaged
            return None

    def write(self) -> None:
        """Write what was added since the last call to the file."""
        with self._lock:
            if not self._unwritten or not self._index.has_file:
                return
            rows = [(_hash(key), detail.unix_nano, _encode(detail.content)) for key, detail in self._unwritten.items()]
            places = ",".join(["(?,?,?)"] * len(rows))
            if self._index.run(f"INSERT OR REPLACE INTO detail VALUES {places}", tuple(itertools.chain(*rows))) is None:  # noqa: S608
                return  # another process writes for longer than we wait: the next call tries again
            if self._index.has_file:  # it is given up after an error
                self._unwritten.clear()
            self._added += len(rows)
            if self._added >= _PRUNE_INTERVAL:
                self._added = 0
                oldest = "SELECT time FROM detail ORDER BY time DESC LIMIT 1 OFFSET ?"
                self._index.run(f"DELETE FROM detail WHERE time <= ({oldest})", (MAX_DETAILS,))  # noqa: S608


def _hash(key: DetailKey) -> bytes:
    return hashlib.blake2b("\0".join(key).encode("utf-8", "replace"), digest_size=16).digest()
