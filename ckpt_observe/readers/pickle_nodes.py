"""The values of a pickle, as its opcodes describe them. Nothing is imported or constructed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from ckpt_observe.readers.contents import Entry, largest_first

_MAX_TEXT: Final = 200
"""Characters of a string that are remembered, for keys and names."""
_MAX_ITEMS: Final = 100_000
"""Items of a container that are remembered; the others are only counted."""
MAX_ARGUMENTS: Final = 16
"""Arguments of a call that are looked at. More would let a pickle that repeats a call take the square of its length."""
MAX_FIELDS: Final = 64
"""Fields of an object, and dimensions of an array, that are looked at. NumPy and torch allow 64 dimensions. A pickle may refer to one long
tuple a million times, and to look at all of it each time would take hours."""
_NO_DETAILS: Final[dict[str, str | int]] = {}
"""Shared by all nodes without details. It is replaced, never changed."""


class Node:
    """A value: an atom or a reference to another value; `Composite` for the others. `start` and `size` are its bytes in the stream.

    A pickle may have millions of atoms, so what only a composite value has is not stored in each of them.
    """

    __slots__ = ("size", "start", "target", "type", "value")

    items: Sequence[tuple[Node, Node]] = ()
    """Key and value of each item, to the requested depth."""
    count: int | None = None
    """Number of items; None if it is no container."""
    args: Sequence[Node] = ()
    """Arguments of a call, until the call is part of another value."""
    external: int = 0
    """Bytes that the value has outside the stream: storages of torch."""
    height: int = 0
    dtype: str = ""
    digest: str = ""
    shape: tuple[int, ...] | None = None
    details: dict[str, str | int] = _NO_DETAILS

    def __init__(self, type_name: str, start: int, value: Any = None, target: Node | None = None) -> None:
        self.type = type_name
        self.start = start
        self.size = 0
        self.value = value
        """A small atom, or the name of a global."""
        self.target = target
        """The value that a reference (memo) stands for."""

    @property
    def resolved(self) -> Node:
        """The value itself, if this is a reference to it."""
        return self.target or self

    def reference(self, start: int) -> Node:
        """Return a reference to this value. What is inside counts where the value itself is."""
        return Node(self.type, start, self.value, self.resolved)

    def cut(self, height: int) -> None:
        """Drop what is deeper than `height` below this node: an atom has nothing below it."""

    def warnings(self, what: str) -> tuple[str, ...]:
        """Return a warning if not all items are remembered."""
        if self.count is None or not _MAX_ITEMS <= len(self.items) < self.count:
            return ()
        return (f"{what}: only the first {len(self.items):,} of {self.count:,} were read, and the others are in the rest",)

    def get(self, name: str | int) -> Node | None:
        """Return the field with this name, resolved, or None."""
        return next((child.resolved for key, child in self.items[:MAX_FIELDS] if key.resolved.value == name), None)

    def integers(self) -> tuple[int, ...]:
        """Return the numbers in a tuple or list, such as a shape."""
        return tuple(child.resolved.value for _, child in self.items[:MAX_FIELDS] if isinstance(child.resolved.value, int))

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


class Composite(Node):
    """A container, a call or a global: what it contains, and what is known about it."""

    __slots__ = ("args", "count", "details", "digest", "dtype", "external", "height", "items", "shape")

    def __init__(self, type_name: str, start: int, value: Any = None) -> None:
        super().__init__(type_name, start, value)
        self.items = self.args = ()
        self.count = self.shape = None
        self.external = self.height = 0
        self.dtype = self.digest = ""
        self.details = _NO_DETAILS

    def add(self, key: Node, child: Node, max_height: int) -> None:
        """Add an item. What is deeper than `max_height` below this node is dropped."""
        self.count = (self.count or 0) + 1
        self.external += child.external
        if isinstance(child, Composite):
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
        if isinstance(other, Composite):
            is_small = len(other.items) <= MAX_ARGUMENTS
            other.items = [(key, child.reference(child.start)) for key, child in other.items] if is_small else ()

    def cut(self, height: int) -> None:
        if self.height <= height:
            return
        self.height = height
        if height == 0:
            self.items = ()
        for _, child in self.items:
            child.cut(height - 1)


@lru_cache(maxsize=1024)
def index_key(index: int) -> Node:
    """Return the key of an item of a list. Lists are short and many, so they share them."""
    return Node("int", 0, index)


def atom(type_name: str, start: int, value: Any) -> Node:
    """Return the node of an atom. A long value is not remembered."""
    is_small = not isinstance(value, str | bytes) or len(value) <= _MAX_TEXT
    return Node(type_name, start, value if is_small else None)
