"""A timeline: a lane for each task and operation, with a bar for each time it ran; and the timeline as text.

    agent save     ==  ==  E===┊==
    agent restore              ┊  =

Outcomes are letters and words, and never colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ckpt_observe.pictures.time_scale import TimeScale
from ckpt_observe.query import RUNNING, ObservedOperation, ObservedPhase
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.formatting import format_count, format_duration, format_time, printable

SYMBOLS: Final = {"ok": "=", "error": "E", "interrupted": "X", "cancelled": "C", "skipped": "S", RUNNING: ">"}
"""The letter of each outcome."""
MEANINGS: Final = {
    "ok": "succeeded",
    "error": "failed",
    "interrupted": "process died",
    "cancelled": "stopped on purpose",
    "skipped": "nothing to do",
    RUNNING: "running",
}
MAX_LANES: Final = 40
_WORST: Final = ("ok", "skipped", "cancelled", RUNNING, "error", "interrupted")
"""If several bars fall on one character, the last of these is shown."""
_MIN_WIDTH: Final = 20
_FOLD_COLUMNS: Final = 2
"""A gap of two columns covers at least one whole column, wherever it starts: bars beside it do not hide its sign."""
_MAX_LABEL: Final = 40


class PhaseBar(msgspec.Struct, frozen=True):
    """A phase inside a bar."""

    name: str
    start_unix_nano: int
    end_unix_nano: int


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a timeline."""

    lane: str
    operation: str
    step: str | None
    trace_id: str
    span_id: str
    start_unix_nano: int
    end_unix_nano: int
    """Now if it is running."""
    outcome: str
    phase: str | None
    """The phase in which it failed, in which its process died, or which is running."""
    phases: tuple[PhaseBar, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.end_unix_nano - self.start_unix_nano) / 1e9

    def describe(self) -> str:
        """Return the facts as one line, for a tooltip and for a table without a picture."""
        step = f" step {self.step}" if self.step is not None else ""
        phase = f" in {self.phase}" if self.phase else ""
        return f"{self.operation}{step}: {MEANINGS.get(self.outcome, self.outcome)}{phase}, {format_duration(self.seconds)}"


class Timeline(msgspec.Struct, frozen=True):
    """The lanes of a timeline, in the order of their first bar."""

    lanes: dict[str, tuple[Bar, ...]]
    left_out: int
    """Operations in lanes that are not shown, because there are too many lanes."""

    @property
    def bars(self) -> list[Bar]:
        return sorted((bar for bars in self.lanes.values() for bar in bars), key=lambda bar: (bar.start_unix_nano, bar.span_id))

    def scale(self, width: float, fold_width: float) -> TimeScale:
        return TimeScale(((bar.start_unix_nano, bar.end_unix_nano) for bar in self.bars), width, fold_width)

    def outcomes(self) -> list[str]:
        """Return the outcomes that occur, in the order of the legend."""
        present = {bar.outcome for bar in self.bars}
        return [outcome for outcome in SYMBOLS if outcome in present]


def build_timeline(operations: Sequence[ObservedOperation], now_unix_nano: int) -> Timeline:
    """Return the timeline of operations. Tasks and spans of other libraries are left out: they would cover every gap."""
    lanes: dict[str, list[Bar]] = {}
    for operation in sorted(operations, key=lambda each: (each.start_unix_nano, each.span_id)):
        if operation.kind == "operation":
            bar = _bar(operation, now_unix_nano)
            lanes.setdefault(bar.lane, []).append(bar)
    shown = dict(list(lanes.items())[:MAX_LANES])
    left_out = sum(len(bars) for lane, bars in lanes.items() if lane not in shown)
    return Timeline({lane: tuple(bars) for lane, bars in shown.items()}, left_out)


def _bar(operation: ObservedOperation, now: int) -> Bar:
    step, rank = operation.attributes.get(names.STEP), operation.attributes.get(names.RANK)
    words = (operation.task_title, f"rank {rank}" if rank is not None else "", operation.name)
    return Bar(
        lane=" ".join(filter(None, words)),
        operation=operation.name,
        step=None if step is None else str(step),
        trace_id=operation.trace_id,
        span_id=operation.span_id,
        start_unix_nano=operation.start_unix_nano,
        end_unix_nano=_end(operation, now),
        outcome=operation.outcome,
        phase=operation.phase,
        phases=tuple(PhaseBar(each.name, each.start_unix_nano, _end(each, now)) for each in operation.phases),
    )


def _end(operation: ObservedOperation | ObservedPhase, now: int) -> int:
    return max(operation.start_unix_nano, now if operation.end_unix_nano is None else operation.end_unix_nano)


def timeline_text(timeline: Timeline, width: int) -> list[str]:
    """Return the timeline as lines of at most `width` characters, or more if that is too narrow."""
    labels = {lane: _shorten(printable(lane)) for lane in timeline.lanes}
    label_width = max(map(len, labels.values()), default=0)
    columns = max(width - label_width - 2, _MIN_WIDTH)
    scale = timeline.scale(columns, _FOLD_COLUMNS)
    lines = [f"{labels[lane].ljust(label_width)}  {_lane_text(bars, scale, columns)}".rstrip() for lane, bars in timeline.lanes.items()]
    return [*lines, "", *_explain_text(timeline, scale)]


def _lane_text(bars: Sequence[Bar], scale: TimeScale, columns: int) -> str:
    cells = [" "] * columns
    for fold in scale.folds:
        cells[min(int(fold.x + fold.width / 2), columns - 1)] = "┊"
    outcomes: dict[int, str] = {}
    for bar in bars:
        first = min(int(scale.position(bar.start_unix_nano)), columns - 1)
        last = min(max(int(scale.position(bar.end_unix_nano) - 1e-9), first), columns - 1)
        for column in range(first, last + 1):
            outcomes[column] = max(outcomes.get(column, "ok"), bar.outcome, key=_rank)
    for column, outcome in outcomes.items():
        cells[column] = SYMBOLS.get(outcome, "?")
    return "".join(cells)


def _rank(outcome: str) -> int:
    return _WORST.index(outcome) if outcome in _WORST else 0


def _explain_text(timeline: Timeline, scale: TimeScale) -> list[str]:
    bars = timeline.bars
    last = max(bar.end_unix_nano for bar in bars)
    lines = [f"{format_time(bars[0].start_unix_nano)} to {format_time(last)}; operations: {len(bars)}"]
    if timeline.left_out:
        lines[0] += f" ({timeline.left_out} more in lanes that are not shown)"
    lines.append(", ".join(f"{SYMBOLS[outcome]} {MEANINGS[outcome]}" for outcome in timeline.outcomes()))
    if scale.folds:
        total = format_duration(sum(fold.seconds for fold in scale.folds))
        lines.append(f"┊ folded time without an operation: {format_count(len(scale.folds), 'gap')}, {total}")
    return lines


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
