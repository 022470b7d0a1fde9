"""What is left of an operation whose owner died, and the last words that it could not say itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans

_decode = msgspec.json.Decoder().decode
_PHASE_NAMES = {code: name for name, code in events.PHASE_CODES.items()}

_Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_TraceId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Parent = _Number | _Id
_Attributes = dict[str, Any] | None

_Sizes = tuple[int | None, int | None]
_Story = tuple[str, _Number, _Parent, _Time, _Time, _Attributes | _Sizes]

SHAPES: Final[dict[str, Any]] = {
    events.BEGIN: tuple[str, _Id, _Time, str, str, _TraceId, str, _Attributes, _Attributes],
    events.PHASE: tuple[str, _Id, _Time, _Number, _Parent, str],
    events.DONE: tuple[str, _Id, _Time, _Story],
    events.LINK: tuple[str, _Id, _Time, str, str, _Attributes],
    events.EVENT: tuple[str, _Id, _Time, str, _Attributes],
    events.END: tuple[str, _Id, _Time, _Attributes, list[_Story], int],
}
"""What each line must look like to be believed."""


_MOMENT: Final = 1000
"""Nanoseconds that it lived on after the last thing it said. Servers count in microseconds, and Jaeger warns of a span that has none."""


@dataclass(slots=True)
class Phase:
    """A phase as the journal knows it; `end` is None while it runs."""

    number: int
    parent: Any
    name: str
    start: int
    end: int | None = None
    attributes: dict[str, Any] | None = None

    def story(self) -> list[Any]:
        return [self.name, self.number, self.parent, self.start, self.end, self.attributes]


@dataclass(slots=True)
class Remains:
    """Lines and marks of one operation."""

    lines: list[list[Any]] = field(default_factory=list)
    marks: tuple[int, ...] = ()

    def ended(self, heartbeat: int, pid: int) -> list[list[Any]]:
        """Its lines with an end: its own if it had one, else `interrupted` at its owner's last sign of life."""
        lines = sorted(self.lines, key=lambda line: (line[0] == events.END, line[0] != events.BEGIN, line[2]))
        if lines[-1][0] == events.END:
            return lines
        phases = sorted([*self._marked(lines[0][2]), *self._written(lines)], key=lambda phase: phase.start)
        seen = [line[2] for line in lines] + [moment for phase in phases for moment in (phase.start, phase.end or 0)]
        end = max(heartbeat, max(seen) + _MOMENT)
        running = [phase for phase in phases if phase.end is None]
        failure = _failure(running[-1].name if running else None)
        kept = [line for line in lines if line[0] not in (events.PHASE, events.DONE)]
        told = [each.story() if each.end else replace(each, end=end, attributes=failure).story() for each in phases]
        operation = lines[0][1]
        words = f"process {pid} died (killed or crashed) {_where(phases, running)}"
        message = {spans.EXCEPTION_TYPE: "ProcessDied", spans.EXCEPTION_MESSAGE: words}
        return [*kept, [events.EVENT, operation, end, spans.EVENT_EXCEPTION, message], [events.END, operation, end, failure, told, 0]]

    def _marked(self, started: int) -> list[Phase]:
        found = []
        for number in range(1, events.MARKED_PHASES + 1):
            begin, end = self.marks[2 * number - 1 : 2 * number + 1] or (0, 0)  # words 2n and 2n + 1 of the page; the first is the count
            name = _PHASE_NAMES.get(begin & 0xFF)
            if name:
                found.append(Phase(number, begin >> 8 & 0xF, name, started + (begin >> 12), started + (end >> 12) if end else None))
        return found

    def _written(self, lines: list[list[Any]]) -> list[Phase]:
        found: dict[int, Phase] = {}
        for line in lines:
            if line[0] == events.PHASE:
                found[line[3]] = Phase(line[3], line[4], line[5], line[2])
            elif line[0] == events.DONE:
                name, number, parent, start, end, attributes = line[3]
                found[number] = Phase(number, parent, name, start, end, attributes)
        cut = self.marks[events.CUT - 1 : events.CUT] > (0,)  # then the end of one that seems to run may be among what is missing
        return [phase for phase in found.values() if phase.end or not cut]


def parse_lines(chunk: bytes) -> list[list[Any]]:
    """The lines of a page that are what they should be. Pages are read as hostile input."""
    found = []
    for line in chunk.split(b"\n"):
        try:
            parsed = _decode(line)
            msgspec.convert(parsed, SHAPES[parsed[0]])
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError):
            continue
        found.append(parsed)
    return found


def _where(phases: list[Phase], running: list[Phase]) -> str:
    if running:
        return f"during {running[-1].name}"
    return f"after {phases[-1].name}" if phases else "before its first phase"


def _failure(phase: str | None) -> dict[str, Any]:
    failure = {
        names.OUTCOME: "interrupted",
        names.ERROR_TYPE: "ProcessDied",
        names.ERROR_CLASS: "interrupted",
        names.ERROR_CODE: "interrupted.process_died",
        names.ERROR_RETRYABLE: True,
        names.ERROR_IMPACT: "what it was writing is not to be relied on; earlier checkpoints are untouched",
    }
    if phase:
        failure[names.ERROR_PHASE] = phase
    return failure
