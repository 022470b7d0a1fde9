"""A trace as text: one line a span, drawn as a tree.

task demo-agent                    1.2 s
├─ checkpoint.save      step 3    4.1 ms  2.0 kB -> 812 B (x2.5)  ok
│  ├─ serialize                   0.1 ms
│  └─ write                       3.2 ms
└─ checkpoint.save      step 5            interrupted in write (process died)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple, TextIO

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import OPERATION_PREFIX
from ckpt_observe.span import Span
from ckpt_observe.tracestore import units
from ckpt_observe.tracestore.order import Node, walk

_DEEPEST: Final = 30
"""Deeper spans are drawn at this depth: no terminal is wider, and a chain of thousands would need the square of its length."""

_WIDEST: Final = 60
"""One long name does not push the numbers of all lines aside."""

_COLOURS: Final = {"ok": "32", "error": "31", "interrupted": "35", "cancelled": "33", "skipped": "36"}


class _Line(NamedTuple):
    label: str
    step: str
    duration: str
    sizes: str
    outcome: str
    rest: str


def render(spans: Iterable[Span], *, colour: bool = False) -> list[str]:
    """One line for each span. A span whose parent is not there stands at the left edge."""
    lines = []
    rails: list[str] = []
    for node in walk(spans):
        lines.append(_line(node, "".join(rails[: node.depth - 1]) if node.depth else ""))
        del rails[max(node.depth - 1, 0) :]
        if 0 < node.depth <= _DEEPEST:
            rails.append("   " if node.last else "│  ")
    label, step, time, sizes = (max((len(line[column]) for line in lines), default=0) for column in range(4))
    label = min(label, _WIDEST)
    return [_join(line, (label, step, time, sizes), colour=colour) for line in lines]


def wants_colour(stream: TextIO) -> bool:
    """A terminal whose user did not say NO_COLOR (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Keeps a name from moving the cursor, breaking the line or colouring the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _join(line: _Line, widths: tuple[int, int, int, int], *, colour: bool) -> str:
    label, step, time, sizes = widths
    outcome = line.outcome
    if colour and outcome:
        outcome = f"\x1b[{_COLOURS.get(outcome.split()[0], '0')}m{outcome}\x1b[0m"
    columns = (line.label.ljust(label), line.step.ljust(step), line.duration.rjust(time), line.sizes.ljust(sizes), outcome, line.rest)
    return "  ".join(column for column in columns if column).rstrip()


def _line(node: Node, rails: str) -> _Line:
    span, given = node.span, node.span.attributes
    branch = "" if node.depth == 0 else "└─ " if node.last else "├─ "
    name = span.name.removeprefix(OPERATION_PREFIX) if names.PHASE in given else span.name
    outcome = str(given.get(names.OUTCOME) or ("error" if span.status == "error" else ""))
    return _Line(
        label=rails + branch + printable(name),
        step=f"step {given[names.STEP]}" if names.STEP in given else "",
        # Nobody was there when it ended.
        duration="" if outcome == "interrupted" else units.duration(span.seconds),
        sizes=_sizes(span),
        outcome=_outcome(span, outcome),
        rest=_source(span),
    )


def _sizes(span: Span) -> str:
    given = span.attributes
    before, after = given.get(names.SIZE_SERIALIZED), given.get(names.SIZE_STORED)
    if names.PHASE in given:
        before, after = given.get(names.PHASE_BYTES_IN), given.get(names.PHASE_BYTES_OUT)
    text = " -> ".join(units.size(count) for count in (before, after) if isinstance(count, int))
    ratio = given.get(names.RATIO)
    return f"{text} (x{units.ratio(ratio)})".strip() if isinstance(ratio, int | float) else text


def _outcome(span: Span, outcome: str) -> str:
    given = span.attributes
    if outcome == "ok":
        return outcome if names.OPERATION in given else ""  # of phases and tasks only trouble is said
    words: list[object] = [outcome]
    if outcome == "error":
        words += [given.get(names.ERROR_CLASS), given.get(names.ERROR_CODE) or given.get(names.ERROR_TYPE)]
    if names.ERROR_PHASE in given:
        words += ["in", given[names.ERROR_PHASE]]
    if outcome == "interrupted":
        words.append("(process died)")
    return printable(" ".join(str(word) for word in words if word))


def _source(span: Span) -> str:
    """Where a restore came from."""
    trace_id = next((link.trace_id for link in span.links), span.attributes.get(names.SOURCE_TRACE))
    if not trace_id:
        return ""
    return "from a save of this trace" if trace_id == span.trace_id else printable(f"from trace {trace_id}"[:19])
