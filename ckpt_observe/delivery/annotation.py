"""Adds to records what only delivery knows.

A load or restore gets its lost steps, a link to the save of its checkpoint, and the tensors that differ from it; a save gets the keys
that grew.

Each record is decoded once, on its way to the spool, or in another process when it is read from there. The saves of a batch of records are
written to the index together: one statement for each would give up the GIL each time, which takes long in a program with busy threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ckpt_observe.delivery.altered_tensors import AlteredTensors
from ckpt_observe.delivery.grown_keys import GrownKeys
from ckpt_observe.delivery.lost_steps import History, LostSteps
from ckpt_observe.delivery.save_details import SaveDetails
from ckpt_observe.delivery.save_index import Lineage, SaveIndex
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

_STEP: Final = f'"{names.STEP}"'.encode()
_ID: Final = f'"{names.ID}"'.encode()
"""A record without any of these attributes is not worth decoding."""
_NOT_A_RECORD: Final = (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_decode = msgspec.json.Decoder().decode
_decode_two_lines = msgspec.json.Decoder(tuple[list[Any], tuple[Any, Any, Any, Any, msgspec.Raw, Any]]).decode
"""Decodes a record that has only `begin` and `end`, as most have, and leaves the phases as they are."""
_encode = msgspec.json.Encoder().encode


class Annotator:
    """Annotates records. Called from any thread.

    `find_dead` adopts the journals of dead processes. Their records come back to `annotate_dead`.
    """

    def __init__(self, history: History, index: SaveIndex, find_dead: Callable[[], object]) -> None:
        self._lost_steps, self._lineage, self._index = LostSteps(history), Lineage(index), index
        self._details = SaveDetails(index)
        self._altered_tensors, self._grown_keys = AlteredTensors(self._details), GrownKeys(self._details)
        self._find_dead = find_dead
        self._last_search = 0
        """When the last search for dead processes started, in Unix nanoseconds."""

    def annotate(self, records: list[bytes]) -> list[bytes]:
        """Return the records, with what is known about their checkpoints. Remember those of saves."""
        return self._annotate_all(records, self._search_dead)

    def annotate_dead(self, records: list[bytes]) -> list[bytes]:
        """Do the same as `annotate` for records of a dead process, but do not search for further dead processes."""
        return self._annotate_all(records, lambda _start: None)

    def _annotate_all(self, records: list[bytes], search_dead: Callable[[int], None]) -> list[bytes]:
        try:
            return [self._annotate(record, search_dead) for record in records]
        finally:
            self._index.write()
            self._details.write()

    def _search_dead(self, start: int) -> None:
        """Search for dead processes, unless the last search began after this load: one search serves a whole backlog of loads."""
        if start >= self._last_search:
            now = time.time_ns()
            self._find_dead()
            self._last_search = now

    def _annotate(self, record: bytes, search_dead: Callable[[int], None]) -> bytes:
        if _STEP not in record and _ID not in record:
            return record
        try:
            lines = _decode_lines(record)
            begin, end = lines[0], lines[-1]
            if begin[0] != events.BEGIN or end[0] != events.END:
                return record
            attributes = {**(begin[8] or {}), **(begin[7] or {}), **(end[3] or {})}
            has_lost_steps = self._lost_steps.annotate(lines, attributes, search_dead)
            has_link = self._lineage.annotate(lines, attributes, search_dead)
            is_compared = self._altered_tensors.annotate(lines, attributes)  # after the link, for which dead processes are searched
            has_growth = self._grown_keys.annotate(lines, attributes)
            return _encode(lines) if has_lost_steps or has_link or is_compared or has_growth else record
        except _NOT_A_RECORD:  # `assemble` reports it
            return record


def _decode_lines(record: bytes) -> list[Any]:
    try:
        begin, end = _decode_two_lines(record)
    except msgspec.ValidationError:
        lines: list[Any] = _decode(record)
        return lines
    return [begin, list(end)]
