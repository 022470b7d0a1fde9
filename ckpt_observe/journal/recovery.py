"""Recovers the operations of a dead process: finished ones go to its spool, running ones end as `interrupted`, each exactly once.

The caller holds both locks of the journal. Recovery can be cut short at any point and repeated: pages are removed only after their content
is in the spool and synced, and operations that the spool already has are not written again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal import spool
from ckpt_observe.journal.claims import Claim
from ckpt_observe.journal.directory import INTERRUPTED, OPEN_PAGES, boot_id, list_page_files
from ckpt_observe.journal.page_reader import begin_line
from ckpt_observe.journal.pool import Annotate
from ckpt_observe.journal.unfinished_operation import read_operations
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

_SPAN_ID: Final = re.compile(rb'"([0-9a-f]{16})"')
_SHORT_LINE: Final = 64
"""Bytes of a record before which its first span id is complete: a checksum, the kind of line, and the id."""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def recover(claim: Claim, annotate: Annotate = lambda records: records) -> int:
    """Move the operations of a dead owner from its pages to its spool. Return how many were interrupted.

    `annotate` is applied to the records before they are written.
    """
    directory, about = claim.directory, claim.about
    paths = list_page_files(directory, about)
    copy = os.path.join(directory, OPEN_PAGES)
    sources = list(paths) if about.boot == boot_id() else []  # the machine was restarted: pages on disk may be older than the copy
    if not any(path.endswith("-00.pages") for path in sources) and os.path.exists(copy):  # the first pages, in shared memory, are gone
        sources.append(copy)
    heartbeat, operations = read_operations(sources)
    # It may have died before its page collector ran: then its operations are the last sign of life.
    heartbeat = heartbeat._replace(time=max([heartbeat.time, *(operation.earliest_end() for operation in operations.values())]))
    spooled_ids = _ids_in_spool(directory) if operations else set()
    finished = [
        operation.finish(heartbeat, about.pid)
        for span_id, operation in operations.items()
        if span_id not in spooled_ids and begin_line(operation.lines)
    ]
    interrupted: int = sum(lines[-1][3].get(names.OUTCOME) == "interrupted" for lines in finished if lines[-1][3])
    if interrupted:  # mark first: after a crash here, the disk limit still spares the reports of these operations
        os.close(files.open_regular(os.path.join(directory, INTERRUPTED), os.O_WRONLY | os.O_CREAT))
    with ignore_errors(DamagedFileError):
        _remove_half_line(directory, operations.keys())
    if finished:
        writer = spool.Spool(directory)
        try:
            writer.append(annotate([_encode(lines) for lines in finished]))
            writer.sync()
        finally:  # on a full disk this is tried again and again: do not leak descriptors
            writer.close()
    for path in (copy, *paths):  # the copy first: it is older than what was delivered since, but without the pages it would be trusted
        _remove(path)
    return interrupted


def _remove_half_line(directory: str, recovered_ids: Collection[str]) -> None:
    """Remove the line that the owner was writing when it died, if its operation is recovered: it must not count as a damaged record."""
    path = spool.segment_path(directory, max(spool.segments(directory), default=0))
    if not recovered_ids or not os.path.exists(path):
        return
    file = files.open_regular(path, os.O_RDWR)
    try:
        size = os.fstat(file).st_size
        tail = os.pread(file, spool.MAX_LINE, max(0, size - spool.MAX_LINE))
        half = tail[tail.rfind(b"\n") + 1 :]
        span_id = _SPAN_ID.search(half)
        if span_id[1].decode() in recovered_ids if span_id else len(half) < _SHORT_LINE:
            os.ftruncate(file, size - len(half))
    finally:
        os.close(file)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise_host_exception(error)
        if not (os.path.isdir(path) and files.set_aside(path)):
            raise


def _ids_in_spool(directory: str) -> set[str]:
    return {begin[1] for payload in spool.read_all(directory) if (begin := begin_line(_decode_record(payload)))}


def _decode_record(payload: bytes) -> list[Any]:
    """Return the lines of a record in the spool."""
    try:
        lines = _decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    rows = lines if isinstance(lines, list) else []
    return [line for line in rows if isinstance(line, list) and len(line) > 3 and isinstance(line[1], str)]
