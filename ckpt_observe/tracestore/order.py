"""Spans in the order of their tree: a parent before its children, siblings by start. No recursion, so no depth is too deep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpt_observe.span import Span


class Node(NamedTuple):
    """A span and its place in the tree."""

    span: Span
    depth: int
    last: bool
    """No sibling follows."""


def walk(spans: Iterable[Span]) -> Iterator[Node]:
    """Every span once. A span whose parent is not there is a root; so is the earliest span of a ring of parents."""
    known = {(span.trace_id, span.span_id): span for span in spans}
    ordered = sorted(known.values(), key=lambda span: (span.start_unix_nano, span.trace_id, span.span_id))
    children: dict[tuple[str, str], list[Span]] = {}
    roots = []
    for span in ordered:
        parent = (span.trace_id, span.parent_span_id)
        if parent in known:
            children.setdefault(parent, []).append(span)
        else:
            roots.append(span)
    seen: set[tuple[str, str]] = set()
    # What no root reaches hangs in a ring: all spans come after the roots, and those seen before are passed over.
    for root in (*roots, *ordered):
        yield from _walk_down(root, children, seen)


def _walk_down(root: Span, children: dict[tuple[str, str], list[Span]], seen: set[tuple[str, str]]) -> Iterator[Node]:
    stack = [Node(root, 0, last=True)]
    while stack:
        node = stack.pop()
        key = (node.span.trace_id, node.span.span_id)
        if key in seen:
            continue
        seen.add(key)
        yield node
        below = children.get(key, [])
        stack.extend(Node(child, node.depth + 1, last=child is below[-1]) for child in reversed(below))
