"""Remembers a little about the latest saves across processes: the sizes of their keys, and the types of their tensors.

A load is compared with its save, and a save with the previous one, which are often in other processes. The details are in the file of the
index of saves, in a table that has far fewer rows, because a row may have some 20 kB.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from typing import Any, Final, NamedTuple

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


class Detail(NamedTuple):
    """What is known about a save, and the time of the save in Unix nanoseconds."""

    unix_nano: int
    content: dict[str, Any]


class SaveDetails:
    """The details of the saves of all processes of a state directory. Called from any thread."""

    def __init__(self, index: SaveIndex) -> None:
        self._index = index
        self._lock = threading.RLock()  # re-entrant: a signal handler that saves a checkpoint may collect pages, too
        self._unwritten: dict[bytes, tuple[int, bytes]] = {}
        self._added = 0

    def put(self, key: bytes, detail: Detail) -> None:
        """Remember the details of a save, and write them to the file with the next `write`."""
        with self._lock:
            self._unwritten.pop(key, None)
            self._unwritten[key] = detail.unix_nano, _encode(detail.content)
            if len(self._unwritten) > _MAX_UNWRITTEN:
                self.write()
            while len(self._unwritten) > _MAX_UNWRITTEN:
                del self._unwritten[next(iter(self._unwritten))]

    def find(self, key: bytes) -> Detail | None:
        """Return the details of a save, or None."""
        with self._lock:
            row = self._unwritten.get(key)
            if row is None:
                rows = self._index.run("SELECT time, content FROM detail WHERE key = ?", (key,))
                row = rows[0] if rows else None
        try:
            return None if row is None else Detail(row[0], _decode(row[1]))
        except (msgspec.DecodeError, TypeError):  # the file is damaged
            return None

    def write(self) -> None:
        """Write what was added since the last call to the file."""
        with self._lock:
            rows = [(key, *row) for key, row in self._unwritten.items()]
            if not rows or not self._index.has_file:
                return
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


def detail_key(*parts: object) -> bytes:
    """Return the key of the details that these texts identify. The first part says which details."""
    text = "\0".join("" if part is None else str(part) for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
