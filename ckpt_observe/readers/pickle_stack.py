"""The stack of an unpickler, with nodes instead of values. It knows how many bytes of the pickle each node takes."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_observe.readers.pickle_nodes import Composite, Node, index_key


class PickleStack:
    """The stack, its marks, and the memo. Items deeper than `depth` levels are not remembered."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.position = 0
        """Where the current opcode is in the pickle."""
        self.values: list[Node] = []
        self.marks: list[tuple[int, int]] = []
        """Position of each mark in the stack, and in the pickle."""
        self.memo: dict[int, Node] = {}

    @property
    def top(self) -> Node:
        """The value that is used next, or the one that it refers to."""
        return self.values[-1].resolved

    @property
    def container(self) -> Composite:
        """The value to which the current opcode adds something."""
        node = self.top
        if not isinstance(node, Composite):
            raise TypeError(f"{node.type} has no items")
        return node

    def push(self, node: Node) -> None:
        self.values.append(node)

    def pop(self, count: int) -> list[Node]:
        """Take values from the stack. Each has the bytes up to the next one."""
        if not count:
            return []
        if self.marks and len(self.values) - count < self.marks[-1][0]:
            raise IndexError("a mark is in the way")
        nodes = self.values[-count:]
        if len(nodes) < count:
            raise IndexError("the stack is empty")
        del self.values[-count:]
        end = self.position
        for node in reversed(nodes):
            node.size = end - node.start
            end = node.start
        return nodes

    def pop_mark(self) -> tuple[int, list[Node]]:
        """Take the values after the last mark. Return where the mark is in the stream, too."""
        index, start = self.marks.pop()
        return start, self.pop(len(self.values) - index)

    def push_reference(self, target: Node) -> None:
        self.values.append(Node(target.type, self.position, target.value, target.target or target))

    def push_container(self, type_name: str, start: int, nodes: Sequence[Node]) -> None:
        container = Composite(type_name, start)
        container.count = 0
        self.add_values(container, nodes)
        self.push(container)

    def push_sequence(self, type_name: str, nodes: Sequence[Node]) -> None:
        self.push_container(type_name, nodes[0].start, nodes)

    def add_values(self, container: Composite, nodes: Sequence[Node]) -> None:
        for node in nodes:
            container.add(index_key(container.count or 0), node, self._depth)

    def add_pairs(self, container: Composite, nodes: Sequence[Node]) -> None:
        if len(nodes) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(nodes[::2], nodes[1::2], strict=True):
            container.add(key, value, self._depth)
