"""Recovers the operations of a dead process: finished ones go to its spool, running ones end as `interrupted`, each exactly once.

The caller holds both locks of the journal. Recovery can be cut short at any point and repeated: pages are removed only after their content
is in the spool and synced, and operations that the spool already has are not written again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal import spool
from ckpt_observe.journal.claims import Claim
from ckpt_observe.journal.directory import INTERRUPTED, OPEN_PAGES, boot_id, list_page_files
from ckpt_observe.journal.page_reader import begin_line, parse_lines, read_pages
from ckpt_observe.journal.pool import Annotate
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

_PHASE_NAMES: Final = {code: name for name, code in events.PHASE_CODES.items()}
_LEAST_NANOSECONDS: Final = 1000
_READ_OPERATIONS: Final = ("load", "restore", "list", "verify")
_REMOVE_OPERATIONS: Final = ("delete", "prune")
_GAPLESS_SYSTEM: Final = "reference"
"""The library whose phases follow each other without a gap: a moment between two of them is part of the first."""
_FIRST_PHASES: Final = {"save": "serialize", "delete": "read", "prune": "remove", **dict.fromkeys(_READ_OPERATIONS, "read")}
_LAST_PHASES: Final = ("commit", "validate", "retain")
"""Phases of a save that end when the checkpoint is durable, or later."""
"""An interrupted operation ends at least this long after its last line. Backends count in microseconds, and Jaeger warns about a span
without duration."""
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
    heartbeat, operations = _read_operations(sources)
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


def _read_operations(paths: list[str]) -> tuple[int, dict[str, UnfinishedOperation]]:
    """Return the owner's last heartbeat, and the content of its pages by span id of the operation."""
    heartbeat, operations = 0, dict[str, UnfinishedOperation]()
    for path in paths:
        try:
            file_heartbeat, pages = read_pages(path)
        except DamagedFileError:  # not a file: nothing of ours is in it
            continue
        heartbeat = max(heartbeat, file_heartbeat)
        for page in pages:
            lines = parse_lines(page.lines)
            for line in lines:
                known_lines = operations.setdefault(line[1], UnfinishedOperation()).lines
                if line not in known_lines:  # the copy may repeat pages
                    known_lines.append(line)
            begin = begin_line(lines)
            if begin:
                operations[begin[1]].marks = operations[begin[1]].marks or page.marks
    return heartbeat, operations


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


@dataclass(slots=True)
class RecoveredPhase:
    """A phase, read from marks or lines. `end` is None if it was running when the process died."""

    number: int
    parent: Any
    name: str
    start: int
    end: int | None = None
    attributes: dict[str, Any] | None = None

    def as_list(self) -> list[Any]:
        """Return the phase as it is in an `end` line."""
        return [self.name, self.number, self.parent, self.start, self.end, self.attributes]


@dataclass(slots=True)
class UnfinishedOperation:
    """Lines and marks that a dead process left of one operation."""

    lines: list[list[Any]] = field(default_factory=list)
    marks: tuple[int, ...] = ()

    def finish(self, heartbeat: int, pid: int) -> list[list[Any]]:
        """Return the lines with an `end`: its own, if the operation had ended, else an `end` with the outcome `interrupted`.

        The time of the latter is the owner's last heartbeat, or just after the last line if that is later.
        """
        lines = sorted(self.lines, key=lambda line: (line[0] == events.END, line[0] != events.BEGIN, line[2]))
        if lines[-1][0] == events.END:
            return lines
        phases = sorted([*self._marked_phases(lines[0][2]), *self._line_phases(lines)], key=lambda phase: phase.start)
        times = [line[2] for line in lines] + [moment for phase in phases for moment in (phase.start, phase.end or 0)]
        end = max(heartbeat, max(times) + _LEAST_NANOSECONDS)
        running = [phase for phase in phases if phase.end is None]
        running_phase = running[-1].name if running else None
        nearest_phase = _nearest_phase(lines[0], phases)
        is_task = lines[0][3] == events.TASK
        failure = _failure_attributes(running_phase or nearest_phase, _describe_impact(lines[0], phases, running_phase))
        other_lines = [line for line in lines if line[0] not in (events.PHASE, events.DONE)]
        phase_lists = [phase.as_list() if phase.end else replace(phase, end=end, attributes=failure).as_list() for phase in phases]
        span_id = lines[0][1]
        progress = "while the task ran" if is_task else _describe_progress(phases, running_phase, nearest_phase)
        message = f"process {pid} died (killed or crashed) {progress}"
        exception = {spans.EXCEPTION_TYPE: "ProcessDied", spans.EXCEPTION_MESSAGE: message}
        return [
            *other_lines,
            [events.EVENT, span_id, end, spans.EVENT_EXCEPTION, exception],
            [events.END, span_id, end, failure, phase_lists, 0],
        ]

    def _marked_phases(self, start: int) -> list[RecoveredPhase]:
        phases = []
        for number in range(1, events.MARKED_PHASES + 1):
            begin, end = self.marks[2 * number - 1 : 2 * number + 1] or (0, 0)  # words 2n and 2n + 1 of the page, whose word 0 is the count
            name = _PHASE_NAMES.get(begin & 0xFF)
            if name:
                phases.append(RecoveredPhase(number, begin >> 8 & 0xF, name, start + (begin >> 12), start + (end >> 12) if end else None))
        return phases

    def _line_phases(self, lines: list[list[Any]]) -> list[RecoveredPhase]:
        phases: dict[int, RecoveredPhase] = {}
        for line in lines:
            if line[0] == events.PHASE:
                phases[line[3]] = RecoveredPhase(line[3], line[4], line[5], line[2])
            elif line[0] == events.DONE:
                name, number, parent, start, end, attributes = line[3]
                phases[number] = RecoveredPhase(number, parent, name, start, end, attributes)
        lines_dropped = self.marks[events.CUT - 1 : events.CUT] > (0,)  # then the end of a phase may be among them: it may not be running
        return [phase for phase in phases.values() if phase.end or not lines_dropped]


def _nearest_phase(begin: list[Any], phases: list[RecoveredPhase]) -> str | None:
    """Return the phase to which a moment at which none is running belongs: the last one or, before the first, that one. None if unknown."""
    attributes = begin[8] or {}
    if attributes.get(names.SYSTEM) != _GAPLESS_SYSTEM:
        return None
    if phases:
        return phases[-1].name
    return "write" if begin[4] == "save" and names.FORMAT not in attributes else _FIRST_PHASES.get(begin[4])  # already serialized


def _describe_progress(phases: list[RecoveredPhase], running_phase: str | None, nearest_phase: str | None) -> str:
    if running_phase:
        return f"during {running_phase}"
    return f"after {phases[-1].name}" if phases else f"before {nearest_phase or 'its first phase'}"


def _describe_impact(begin: list[Any], phases: list[RecoveredPhase], running_phase: str | None) -> str:
    """Return what the death of a process means for the checkpoints of an operation or task."""
    if begin[3] == events.TASK:
        return "work since its last checkpoint is lost; saved checkpoints are untouched"
    if begin[4] in _READ_OPERATIONS:
        return "nothing was returned; saved checkpoints are untouched"
    if begin[4] in _REMOVE_OPERATIONS:
        return "some of the checkpoints may not be removed; the others are untouched"
    if running_phase == "retain" or (running_phase is None and phases and phases[-1].name in _LAST_PHASES):
        return "this checkpoint was saved; old checkpoints that retention removes may still exist"
    return "what it was writing is not to be relied on; earlier checkpoints are untouched"


def _failure_attributes(phase: str | None, impact: str) -> dict[str, Any]:
    attributes = {
        names.OUTCOME: "interrupted",
        names.ERROR_TYPE: "ProcessDied",
        names.ERROR_CLASS: "interrupted",
        names.ERROR_CODE: "interrupted.process_died",
        names.ERROR_RETRYABLE: True,
        names.ERROR_IMPACT: impact,
    }
    if phase:
        attributes[names.ERROR_PHASE] = phase
    return attributes
