"""An operation in the pages of its process, from lines and marks: it is running, or its process died before it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal.page_reader import Heartbeat, begin_line, parse_lines, read_pages
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans

_PHASE_NAMES: Final = {code: name for name, code in events.PHASE_CODES.items()}
_LEAST_NANOSECONDS: Final = 1000
"""An interrupted operation ends at least this long after its last line. Backends count in microseconds, and Jaeger warns about a span
without duration."""
_READ_OPERATIONS: Final = ("load", "restore", "list", "verify", "drill")
_REMOVE_OPERATIONS: Final = ("delete", "prune")
_GAPLESS_SYSTEM: Final = "reference"
"""The library whose phases follow each other without a gap: a moment between two of them is part of the first."""
_FIRST_PHASES: Final = {"save": "serialize", "delete": "read", "prune": "remove", **dict.fromkeys(_READ_OPERATIONS, "read")}
_LAST_PHASES: Final = ("commit", "validate", "retain")
"""Phases of a save that end when the checkpoint is durable, or later."""


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
    """Lines and marks of one operation in the pages of its process."""

    lines: list[list[Any]] = field(default_factory=list)
    marks: tuple[int, ...] = ()
    is_ended: bool = False
    """Whether its page says that it ended. Its `end` line may be missing, if there was no room for it."""

    def is_running(self) -> bool:
        """Return whether the operation has begun and not ended."""
        return not self.is_ended and begin_line(self.lines) is not None and all(line[0] != events.END for line in self.lines)

    def finish(self, heartbeat: Heartbeat, pid: int) -> list[list[Any]]:
        """Return the lines with an `end`: its own, if the operation had ended, else an `end` with the outcome `interrupted`.

        The time of the latter is the owner's last heartbeat, or just after the last line if that is later. An operation also has the peak
        memory of the owner at its last heartbeat, which shows whether the system may have killed it for lack of memory.
        """
        lines = self._sorted_lines()
        if lines[-1][0] == events.END:
            return lines
        phases = self._phases(lines)
        end = max(heartbeat.time, self.earliest_end())
        running = [phase for phase in phases if phase.end is None]
        running_phase = running[-1].name if running else None
        nearest_phase = _nearest_phase(lines[0], phases)
        is_task = lines[0][3] == events.TASK
        failure = _failure_attributes(running_phase or nearest_phase, _describe_impact(lines[0], phases, running_phase))
        phase_lists = [phase.as_list() if phase.end else replace(phase, end=end, attributes=failure).as_list() for phase in phases]
        span_id = lines[0][1]
        progress = "while the task ran" if is_task else _describe_progress(phases, running_phase, nearest_phase)
        message = f"process {pid} died (killed or crashed) {progress}"
        exception = {spans.EXCEPTION_TYPE: "ProcessDied", spans.EXCEPTION_MESSAGE: message}
        return [
            *_without_phases(lines),
            [events.EVENT, span_id, end, spans.EVENT_EXCEPTION, exception],
            [events.END, span_id, end, failure if is_task else {**failure, **_memory_attributes(heartbeat)}, phase_lists, 0],
        ]

    def earliest_end(self) -> int:
        """Return when it ended, or a moment after its last line or mark: it was running until then."""
        lines = self._sorted_lines()
        if lines[-1][0] == events.END:
            return int(lines[-1][2])
        moments = [line[2] for line in lines] + [moment for phase in self._phases(lines) for moment in (phase.start, phase.end or 0)]
        return int(max(moments)) + _LEAST_NANOSECONDS

    def stop_at(self, now: int, outcome: str) -> list[list[Any]]:
        """Return the lines with an `end` at this moment, for a look at an operation that is running. Open phases have the same outcome."""
        lines = self._sorted_lines()
        attributes = {names.OUTCOME: outcome}
        phases = [phase if phase.end else replace(phase, end=now, attributes=attributes) for phase in self._phases(lines)]
        return [*_without_phases(lines), [events.END, lines[0][1], now, attributes, [phase.as_list() for phase in phases], 0]]

    def _sorted_lines(self) -> list[list[Any]]:
        return sorted(self.lines, key=lambda line: (line[0] == events.END, line[0] != events.BEGIN, line[2]))

    def _phases(self, lines: list[list[Any]]) -> list[RecoveredPhase]:
        return sorted([*self._marked_phases(lines[0][2]), *self._line_phases(lines)], key=lambda phase: phase.start)

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


def read_operations(paths: list[str]) -> tuple[Heartbeat, dict[str, UnfinishedOperation]]:
    """Return the last heartbeat of the owner of these page files, and the content of its pages by span id of the operation."""
    heartbeat, operations = Heartbeat(), dict[str, UnfinishedOperation]()
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
                operation = operations[begin[1]]
                operation.marks, operation.is_ended = operation.marks or page.marks, operation.is_ended or page.is_ended
    return heartbeat, operations


def _without_phases(lines: list[list[Any]]) -> list[list[Any]]:
    return [line for line in lines if line[0] not in (events.PHASE, events.DONE)]


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
    return "what it was writing may be incomplete; earlier checkpoints are untouched"


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


def _memory_attributes(heartbeat: Heartbeat) -> dict[str, Any]:
    return {names.MEMORY_PEAK: heartbeat.peak_memory} if heartbeat.peak_memory else {}
