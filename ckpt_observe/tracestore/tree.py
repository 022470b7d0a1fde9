"""The spans of a trace as a tree, and drawn as text: one line per span, and below a failed operation what there is to know about it.

task demo-agent                    1.2 s
├─ checkpoint.save      step 3    4.1 ms  2.0 kB -> 812 B (x2.5)  ok  id 0003
│  ├─ serialize                   0.1 ms
│  └─ write                       3.2 ms
└─ checkpoint.save      step 5            interrupted in write (process died)
     ProcessDied: process 16805 died (killed or crashed) during write
     advice: ...
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import OTHER
from ckpt_observe.semconv.spans import OPERATION_PREFIX
from ckpt_observe.span import Span
from ckpt_observe.support.formatting import format_duration, format_ratio, format_size, printable
from ckpt_observe.tracestore.failure_details import failure_details

_MAX_DEPTH: Final = 30
"""Deeper spans are drawn at this depth. A chain of thousands would otherwise need space quadratic in its length."""

_MAX_LABEL_WIDTH: Final = 60
"""Maximum width of the column of names, so that one long name does not move the numbers of all lines to the right."""

_MAX_POSITION_WIDTH: Final = 30

_LINE_WIDTH: Final = 120
"""Notes and failure details that would make a line longer than this continue on the next line."""
_MIN_DETAIL_WIDTH: Final = 60
"""Width of the text of failure details at any depth."""

_ABOUT_CHECKPOINTS: Final = ("list", "prune", "save", "verify")
"""Operations that count checkpoints. Others, such as those on sessions, count items."""
_UUID: Final = re.compile(r":[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COLOURS: Final = {"ok": "32", "error": "31", "interrupted": "35", "cancelled": "33", "skipped": "36"}


_NOTED_GROWTH: Final = 10
"""Growth of a key is worth a note if it is more than this part of the state: a tenth."""


class TreeNode(NamedTuple):
    """A span and its place in the tree."""

    span: Span
    depth: int
    is_last: bool
    """No sibling follows."""


class _Line(NamedTuple):
    label: str
    position: str
    duration: str
    sizes: str
    outcome: str
    notes: str


def walk(spans: Iterable[Span]) -> Iterator[TreeNode]:
    """Yield every span once: parents before their children, siblings by start time.

    A span whose parent is missing is a root. If spans form a cycle of parents, the earliest of them is a root.
    """
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    ordered = sorted(by_id.values(), key=lambda span: (span.start_unix_nano, span.trace_id, span.span_id))
    children: dict[tuple[str, str], list[Span]] = {}
    roots = []
    for span in ordered:
        parent = (span.trace_id, span.parent_span_id)
        if parent in by_id:
            children.setdefault(parent, []).append(span)
        else:
            roots.append(span)
    visited: set[tuple[str, str]] = set()
    # Spans that no root reaches are in a cycle. Trying all spans after the roots finds them; visited ones are skipped.
    for root in (*roots, *ordered):
        yield from _walk_down(root, children, visited)


def _walk_down(root: Span, children: dict[tuple[str, str], list[Span]], visited: set[tuple[str, str]]) -> Iterator[TreeNode]:
    """Walk the subtree without recursion, so that its depth is not limited."""
    stack = [TreeNode(root, 0, is_last=True)]
    while stack:
        node = stack.pop()
        key = (node.span.trace_id, node.span.span_id)
        if key in visited:
            continue
        visited.add(key)
        yield node
        below = children.get(key, [])
        stack.extend(TreeNode(child, node.depth + 1, is_last=child is below[-1]) for child in reversed(below))


def render(spans: Iterable[Span], *, colour: bool = False) -> list[str]:
    """Return one line per span, followed by the details of a failure. Spans whose parent is missing are not indented."""
    lines = []
    indents: list[str] = []
    rails: list[str] = []
    nodes = list(walk(spans))
    for node, following in zip_longest(nodes, nodes[1:]):
        lines.append(_line(node, "".join(rails[: node.depth - 1]) if node.depth else ""))
        del rails[max(node.depth - 1, 0) :]
        if 0 < node.depth <= _MAX_DEPTH:
            rails.append("   " if node.is_last else "│  ")
        has_children = following is not None and following.depth > node.depth
        indents.append("".join(rails) + ("│    " if has_children else "     "))
    label, position, time, sizes = (max((len(line[column]) for line in lines), default=0) for column in range(4))
    widths = min(label, _MAX_LABEL_WIDTH), min(position, _MAX_POSITION_WIDTH), time, sizes
    texts: list[str] = []
    for node, line, indent in zip(nodes, lines, indents, strict=True):
        texts += [*_join_columns(line, widths, indent, colour=colour), *_wrap_details(node.span, indent)]
    return texts


def _join_columns(line: _Line, widths: tuple[int, int, int, int], indent: str, *, colour: bool) -> list[str]:
    """Return the line of a span, and its notes on a line of their own if they do not fit."""
    label, position, time, sizes = widths
    columns = (line.label.ljust(label), line.position.ljust(position), line.duration.rjust(time), line.sizes.ljust(sizes), line.outcome)
    text = "  ".join(column for column in columns if column).rstrip()
    has_room = len(text) + 2 + len(line.notes) <= _LINE_WIDTH
    if colour and line.outcome:
        colour_code = _COLOURS.get(line.outcome.split()[0], "0")
        text = f"{text.removesuffix(line.outcome)}\x1b[{colour_code}m{line.outcome}\x1b[0m"
    if has_room:
        return ["  ".join(filter(None, (text, line.notes)))]
    return [text, indent + line.notes] if line.notes else [text]


def _wrap_details(span: Span, indent: str) -> list[str]:
    width = max(_LINE_WIDTH - len(indent), _MIN_DETAIL_WIDTH)
    facts = map(printable, failure_details(span))
    return [indent + part for fact in facts for part in textwrap.wrap(fact, width, subsequent_indent="  ", break_long_words=False)]


def _line(node: TreeNode, rails: str) -> _Line:
    span, attributes = node.span, node.span.attributes
    branch = "" if node.depth == 0 else "└─ " if node.is_last else "├─ "
    name = span.name.removeprefix(OPERATION_PREFIX) if names.PHASE in attributes else span.name
    outcome = str(attributes.get(names.OUTCOME) or ("error" if span.status == "error" else ""))
    return _Line(
        label=rails + branch + printable(name),
        position=_format_position(span),
        # The end of an interrupted operation is only an estimate.
        duration="" if outcome == "interrupted" else format_duration(span.seconds),
        sizes=_format_sizes(span),
        outcome=_format_outcome(span, outcome),
        notes=printable(", ".join(_notes(span))),
    )


def _format_position(span: Span) -> str:
    """Return where in the run the operation was: its step, or the node that appended and why, such as `approve (interrupt) in research`."""
    attributes = span.attributes
    node, reason = attributes.get(names.NODE), attributes.get(names.REASON)
    if names.STEP in attributes:
        position = f"step {attributes[names.STEP]}"
    else:
        position = f"{node} ({reason})" if node and reason else str(node or reason or "")
    namespace = attributes.get(names.NAMESPACE)
    if namespace:
        # The steps of a subgraph are counted on their own. The IDs in its name differ from run to run.
        position = f"{position} in {_UUID.sub('', str(namespace)).replace('|', '/')}".lstrip()
    return printable(position)


def _format_sizes(span: Span) -> str:
    attributes = span.attributes
    before, after = attributes.get(names.SIZE_SERIALIZED), attributes.get(names.SIZE_STORED)
    if names.PHASE in attributes:
        before, after = attributes.get(names.PHASE_BYTES_IN), attributes.get(names.PHASE_BYTES_OUT)
    text = " -> ".join(format_size(count) for count in (before, after) if isinstance(count, int))
    ratio = attributes.get(names.RATIO)
    return f"{text} (codec x{format_ratio(ratio)})".strip() if isinstance(ratio, int | float) else text


def _format_outcome(span: Span, outcome: str) -> str:
    attributes = span.attributes
    if outcome == "ok":
        return outcome if names.OPERATION in attributes else ""  # phases and tasks show only failures
    words: list[object] = [outcome]
    if outcome == "error":
        error_class, code = attributes.get(names.ERROR_CLASS), attributes.get(names.ERROR_CODE)
        is_in_code = code and str(code).startswith(f"{error_class}.")
        words += [None if is_in_code else error_class, code or attributes.get(names.ERROR_TYPE)]
    if names.ERROR_PHASE in attributes:
        words += ["in", attributes[names.ERROR_PHASE]]
    if names.ERROR_PATH in attributes:
        words += ["at", attributes[names.ERROR_PATH]]
    if outcome == "interrupted":
        words.append("(process died)")
    return printable(" ".join(str(word) for word in words if word))


def _notes(span: Span) -> Iterator[str]:
    """Yield what else matters: ranks, times, where a load came from, what is wrong with it, the key that makes a save large, the status.

    The ID of the checkpoint is the last, because it is long. With a failure, it is in the details.
    """
    attributes = span.attributes
    if names.RANK in attributes:
        world_size = attributes.get(names.WORLD_SIZE)
        yield f"rank {attributes[names.RANK]}" + (f" of {world_size}" if world_size is not None else "")
    yield from _notes_on_times(attributes)
    if attributes.get(names.TASK_INFERRED):
        yield "task inferred"
    trace_id = next((link.trace_id for link in span.links), attributes.get(names.SOURCE_TRACE))
    if trace_id:
        yield "from a save of this trace" if trace_id == span.trace_id else f"from trace {trace_id}"[:19]
    if attributes.get(names.EXISTS) is False:
        yield "no checkpoint found"
    if isinstance(count := attributes.get(names.COUNT), int):
        noun = "checkpoint" if attributes.get(names.OPERATION) in _ABOUT_CHECKPOINTS else "item"
        yield f"{count} {noun}{'' if count == 1 else 's'}"
    if altered := _values(attributes.get(names.ALTERED_KEYS)):
        yield f"altered: {' '.join(map(str, altered))}"
    sizes = _key_sizes(attributes, names.KEY_NAMES, names.KEY_SIZES)
    largest = max(sizes, key=lambda name: sizes[name], default="")
    grown = _key_sizes(attributes, names.GROWN_KEYS, names.GROWN_SIZES)
    total = attributes.get(names.SIZE_SERIALIZED, 0)
    if largest and isinstance(total, int) and sizes[largest] * 2 > total:
        growth = grown.pop(largest, 0)
        yield f"mostly {largest} ({format_size(sizes[largest])}{f', +{format_size(growth)}' if growth else ''})"
    most_grown = next(iter(grown), "")
    if most_grown and grown[most_grown] * _NOTED_GROWTH > sum(sizes.values()):
        yield f"{'the rest' if most_grown == OTHER else most_grown} grew by {format_size(grown[most_grown])}"
    if names.STATUS in attributes and names.OPERATION not in attributes and span.status != "error":
        yield str(attributes[names.STATUS])
    if names.ID in attributes and span.status != "error":
        yield f"id {attributes[names.ID]}"


def _notes_on_times(attributes: dict[str, Any]) -> Iterator[str]:
    """Yield the rank for which the others waited, and what an async save cost the program."""
    delay, blocked, durable = (attributes.get(name) for name in (names.STRAGGLER_DELAY, names.ASYNC_BLOCKED, names.ASYNC_DURABLE))
    if isinstance(delay, float):
        rank, phase = attributes.get(names.STRAGGLER_RANK), attributes.get(names.STRAGGLER_PHASE)
        yield f"rank {rank} slower by {format_duration(delay)} in {phase}"
    if isinstance(blocked, float):
        yield f"blocked {format_duration(blocked)}" + (f", durable after {format_duration(durable)}" if isinstance(durable, float) else "")


def _key_sizes(attributes: dict[str, Any], key_names: str, key_sizes: str) -> dict[str, int]:
    """Return the size of each key. A program can set any attribute to anything: what is not a size is left out."""
    pairs = zip(_values(attributes.get(key_names)), _values(attributes.get(key_sizes)), strict=False)
    return {str(name): size for name, size in pairs if isinstance(size, int)}


def _values(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()
