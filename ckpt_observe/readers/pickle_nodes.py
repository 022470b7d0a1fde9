"""The values of a pickle, as its opcodes describe them. Nothing is imported or constructed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ckpt_observe.readers.contents import Entry, largest_first

_MAX_TEXT: Final = 200
"""Characters of a string that are remembered, for keys and names."""
_MAX_ITEMS: Final = 100_000
"""Items of a container that are remembered; the others are only counted."""
MAX_ARGUMENTS: Final = 16
"""Arguments of a call that are looked at. More would let a pickle that repeats a call take the square of its length."""
_NO_DETAILS: Final[dict[str, str | int]] = {}
"""Shared by all nodes without details. It is replaced, never changed."""


class Node:
    """A value. `start` and `size` are its bytes in the stream."""

    __slots__ = (
        *("type", "start", "size", "value", "items", "count", "args", "external", "height", "target"),
        *("dtype", "shape", "digest", "details"),
    )

    def __init__(self, type_name: str, start: int, value: Any = None) -> None:
        self.type = type_name
        self.start = start
        self.size = 0
        self.value = value
        """A small atom, or the name of a global."""
        self.items: Sequence[tuple[Node, Node]] = ()
        """Key and value of each item, to the requested depth."""
        self.count: int | None = None
        """Number of items; None if it is no container."""
        self.args: Sequence[Node] = ()
        """Arguments of a call, until the call is part of another value."""
        self.external = 0
        """Bytes that the value has outside the stream: storages of torch."""
        self.height = 0
        self.dtype = ""
        self.digest = ""
        self.shape: tuple[int, ...] | None = None
        self.details = _NO_DETAILS
        self.target: Node | None = None
        """The value that a reference (memo) stands for."""

    @property
    def resolved(self) -> Node:
        """The value itself, if this is a reference to it."""
        return self.target or self

    def reference(self, start: int) -> Node:
        """Return a reference to this value. What is inside counts where the value itself is."""
        reference = Node(self.type, start, self.value)
        reference.target = self.resolved
        return reference

    def add(self, key: Node, child: Node, max_height: int) -> None:
        """Add an item. What is deeper than `max_height` below this node is dropped."""
        self.count = (self.count or 0) + 1
        self.external += child.external
        child.args = ()
        if max_height < 1 or len(self.items) >= _MAX_ITEMS:
            return
        if child.height >= max_height + max_height // 4:  # not at every level, which would cost the square of the depth
            child.cut(max_height - 1)
        if not isinstance(self.items, list):
            self.items = []
        self.items.append((key, child))
        self.height = max(self.height, child.height + 1)

    def take_items(self, other: Node) -> None:
        """Get the items of another node, such as the state of an object. It keeps references to a few: no pickle can multiply values."""
        self.items = [*self.items, *other.items]
        self.count = (self.count or 0) + (other.count or 0)
        self.height = max(self.height, other.height)
        other.items = [(key, child.reference(child.start)) for key, child in other.items] if len(other.items) <= MAX_ARGUMENTS else ()

    def cut(self, height: int) -> None:
        """Drop what is deeper than `height` below this node."""
        if self.height <= height:
            return
        self.height = height
        if height == 0:
            self.items = ()
        for _, child in self.items:
            child.cut(height - 1)

    def warnings(self, what: str) -> tuple[str, ...]:
        """Return a warning if not all items are remembered."""
        if self.count is None or not _MAX_ITEMS <= len(self.items) < self.count:
            return ()
        return (f"{what}: only the first {len(self.items):,} of {self.count:,} were read, and the others are in the rest",)

    def get(self, name: str | int) -> Node | None:
        """Return the item with this key, resolved, or None."""
        return next((child.resolved for key, child in self.items if key.resolved.value == name), None)

    def integers(self) -> tuple[int, ...]:
        """Return the items of a tuple or list of numbers; items that are no numbers are left out."""
        return tuple(child.resolved.value for _, child in self.items if isinstance(child.resolved.value, int))

    def entry(self, name: str, depth: int) -> Entry:
        """Return the entry of this value, with `depth` levels below it. An array has the bytes of its data, if they are elsewhere."""
        node = self.resolved
        is_elsewhere = node.shape is not None and ("storage" in node.details or node.external)
        size = self.external + (0 if is_elsewhere else self.size)
        children = [child.entry(key.name(), depth - 1) for key, child in node.items] if depth > 0 and not self.target else []
        return Entry(
            name=name,
            type=node.type,
            size=size,
            dtype=node.dtype,
            shape=node.shape,
            items=node.count if node.shape is None else None,
            digest=node.digest,
            details=node.details,
            children=largest_first(children),
        )

    def name(self) -> str:
        """Return the name that this value has as a key."""
        node = self.resolved
        if node.value is not None:
            return str(node.value)
        if node.items and node.type == "tuple":
            return "(" + ", ".join(str(child.resolved.value) for _, child in node.items[:8]) + ")"
        return f"<{node.type}>"


def atom(type_name: str, start: int, value: Any) -> Node:
    """Return the node of an atom. A long value is not remembered."""
    is_small = not isinstance(value, str | bytes) or len(value) <= _MAX_TEXT
    return Node(type_name, start, value if is_small else None)
