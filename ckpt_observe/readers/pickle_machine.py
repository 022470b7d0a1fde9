"""Follows the opcodes of a pickle without executing them.

The machine has the stack, the marks and the memo of an unpickler. Instead of importing and calling, it notes names; instead of values, it
has nodes with their types and their bytes. Payloads are skipped. The number of opcodes, the stack and the time are limited.
"""

from __future__ import annotations

import pickletools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.errors import CheckpointError, DeadlineError
from ckpt_observe.readers.pickle_calls import describe_call, describe_state
from ckpt_observe.readers.pickle_nodes import MAX_ARGUMENTS, Node, atom
from ckpt_observe.readers.source import Limits, exceeds, malformed
from ckpt_observe.readers.streams import ByteStream

_MAX_PAYLOAD: Final = 4096
"""Bytes of a string or number that are read; longer ones are skipped."""
_MAX_STACK: Final = 2_000_000
_CALL_DEPTH: Final = 4
"""Levels that are always remembered, because the arguments of a call tell dtype and shape."""
_LENGTH_WIDTHS: Final = {-2: 1, -3: 4, -4: 4, -5: 8}
"""Bytes of the length before a payload, by `pickletools`' numbers for such arguments."""
_LINES: Final = {"STRING": 1, "PERSID": 1, "GLOBAL": 2, "INST": 2}
"""Lines of text after these opcodes."""
_ATOMS: Final = {
    **dict.fromkeys(("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"), "int"),
    **dict.fromkeys(("FLOAT", "BINFLOAT"), "float"),
    **dict.fromkeys(("STRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), "str"),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING"), "bytes"),
    "BYTEARRAY8": "bytearray",
    "NEXT_BUFFER": "buffer",
}
_CONSTANTS: Final = {"NONE": ("NoneType", None), "NEWTRUE": ("bool", True), "NEWFALSE": ("bool", False)}
_EMPTY: Final = {"EMPTY_DICT": "dict", "EMPTY_LIST": "list", "EMPTY_SET": "set", "EMPTY_TUPLE": "tuple"}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

Hook = Callable[[Node], None]


class PickleMachine:
    """Follows one pickle, or several in a row."""

    def __init__(
        self,
        stream: ByteStream,
        limits: Limits,
        location: str,
        *,
        depth: int,
        on_build: Hook = describe_state,
        on_persistent: Hook | None = None,
    ) -> None:
        """`on_build` is called after an object got its state, `on_persistent` with the node of a persistent id, whose args have the id."""
        self.imports: set[str] = set()
        self._stream = stream
        self._location = location
        self._limits = limits
        self._depth = min(max(depth, _CALL_DEPTH), limits.depth)
        self.on_build = on_build
        self._on_persistent = on_persistent
        self._steps = 0
        self._deadline = time.monotonic() + limits.seconds
        self._position = 0
        self._stack: list[Node] = []
        self._marks: list[tuple[int, int]] = []
        self._memo: dict[int, Node] = {}

    def run(self) -> Node:
        """Follow the opcodes to the next STOP, and return the value."""
        self._stack, self._marks, self._memo = [], [], {}
        try:
            while True:
                self._position = self._stream.position
                code = self._stream.read(1)
                operation = _OPERATIONS.get(code[0])
                if operation is None:
                    raise malformed(self._location, f"byte {self._position} is not an opcode of a pickle")
                self._count_step()
                if operation.name == "STOP":
                    return self._finish()
                self._step(operation.name, self._argument(operation))
        except CheckpointError:
            raise
        except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            reason = f"the opcode at byte {self._position} cannot follow those before it ({type(error).__name__}: {error})"
            raise malformed(self._location, reason) from error

    def follow_inner(self) -> None:
        """Follow another pickle in the midst of this one. Both together have the limits of one."""
        inner = PickleMachine(self._stream, self._limits, self._location, depth=1)
        inner.imports, inner._steps, inner._deadline = self.imports, self._steps, self._deadline
        inner.run()
        self._steps = inner._steps

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > self._limits.steps:
            raise exceeds(f"the number of opcodes in {self._location}", "steps", self._limits.steps)
        if len(self._stack) > _MAX_STACK:
            raise malformed(self._location, f"more than {_MAX_STACK:,} values wait on its stack, which no pickler does")
        if self._steps % 65536 == 0 and time.monotonic() > self._deadline:
            text = f"reading {self._location} took longer than {self._limits.seconds:g} s; pass limits=Limits(seconds=...)"
            raise DeadlineError(text)

    def _finish(self) -> Node:
        root = self._stack.pop()
        root.size = self._position - root.start
        root.cut(self._depth)
        return root

    def _argument(self, operation: Any) -> Any:
        argument = operation.arg
        if argument is None:
            return None
        if operation.name in _LINES:  # without escapes: `pickletools` decodes them, which warns about invalid ones
            lines = [self._stream.readline()[:-1].strip(b"'\"").decode("utf-8", "replace") for _ in range(_LINES[operation.name])]
            return " ".join(lines)
        width = _LENGTH_WIDTHS.get(argument.n)
        if width is None:
            return argument.reader(self._stream)
        length = int.from_bytes(self._stream.read(width), "little")
        if length > _MAX_PAYLOAD:
            self._stream.skip(length)
            return None
        data = self._stream.read(length)
        if operation.name.startswith("LONG"):
            return int.from_bytes(data, "little", signed=True) if length <= 16 else None
        return data.decode("utf-8", "surrogatepass") if "UNICODE" in operation.name else data

    def _step(self, name: str, argument: Any) -> None:
        if name in _ATOMS:
            self._push(atom(_ATOMS[name], self._position, argument))
        elif name in _CONSTANTS:
            self._push(atom(_CONSTANTS[name][0], self._position, _CONSTANTS[name][1]))
        elif name in _EMPTY:
            self._push_container(_EMPTY[name], self._position, ())
        elif name in _TUPLES:
            self._push_sequence("tuple", self._pop(_TUPLES[name]))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1].resolved
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._push_reference(self._memo[argument])
        else:
            getattr(self, f"_do_{name.lower()}")(argument)

    # Stack

    def _push(self, node: Node) -> None:
        self._stack.append(node)

    def _pop(self, count: int) -> list[Node]:
        """Take values from the stack. Each has the bytes up to the next one."""
        if not count:
            return []
        if self._marks and len(self._stack) - count < self._marks[-1][0]:
            raise IndexError("a mark is in the way")
        nodes = self._stack[-count:]
        if len(nodes) < count:
            raise IndexError("the stack is empty")
        del self._stack[-count:]
        for node, following in zip(nodes, [*(node.start for node in nodes[1:]), self._position], strict=True):
            node.size = following - node.start
        return nodes

    def _pop_mark(self) -> tuple[int, list[Node]]:
        """Take the values after the last mark. Return where the mark is in the stream, too."""
        index, start = self._marks.pop()
        return start, self._pop(len(self._stack) - index)

    def _push_reference(self, target: Node) -> None:
        self._push(target.reference(self._position))

    def _push_container(self, type_name: str, start: int, nodes: Sequence[Node]) -> None:
        container = Node(type_name, start)
        container.count = 0
        self._add_values(container, nodes)
        self._push(container)

    def _push_sequence(self, type_name: str, nodes: Sequence[Node]) -> None:
        self._push_container(type_name, nodes[0].start, nodes)

    def _add_values(self, container: Node, nodes: Sequence[Node]) -> None:
        for node in nodes:
            container.add(Node("int", node.start, container.count or 0), node, self._depth)

    def _add_pairs(self, container: Node, nodes: Sequence[Node]) -> None:
        if len(nodes) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(nodes[::2], nodes[1::2], strict=True):
            container.add(key, value, self._depth)

    # Opcodes that are not in a table above

    def _do_mark(self, _: Any) -> None:
        self._marks.append((len(self._stack), self._position))

    def _do_pop(self, _: Any) -> None:
        if self._marks and self._marks[-1][0] == len(self._stack):
            self._marks.pop()
        else:
            self._pop(1)

    def _do_pop_mark(self, _: Any) -> None:
        self._pop_mark()

    def _do_dup(self, _: Any) -> None:
        self._push_reference(self._stack[-1].resolved)

    def _do_tuple(self, _: Any) -> None:
        self._push_container("tuple", *self._pop_mark())

    def _do_list(self, _: Any) -> None:
        self._push_container("list", *self._pop_mark())

    def _do_frozenset(self, _: Any) -> None:
        self._push_container("frozenset", *self._pop_mark())

    def _do_dict(self, _: Any) -> None:
        start, nodes = self._pop_mark()
        self._push_container("dict", start, ())
        self._add_pairs(self._stack[-1], nodes)

    def _do_append(self, _: Any) -> None:
        nodes = self._pop(1)
        self._add_values(self._stack[-1].resolved, nodes)

    def _do_appends(self, _: Any) -> None:
        nodes = self._pop_mark()[1]
        self._add_values(self._stack[-1].resolved, nodes)

    _do_additems = _do_appends

    def _do_setitem(self, _: Any) -> None:
        nodes = self._pop(2)
        self._add_pairs(self._stack[-1].resolved, nodes)

    def _do_setitems(self, _: Any) -> None:
        nodes = self._pop_mark()[1]
        self._add_pairs(self._stack[-1].resolved, nodes)

    def _do_proto(self, _: Any) -> None:
        pass

    def _do_frame(self, _: Any) -> None:
        pass  # the opcodes of a frame follow as usual

    def _do_readonly_buffer(self, _: Any) -> None:
        pass

    # Names and calls

    def _do_global(self, names: str) -> None:
        module, _, name = names.partition(" ")
        self._push_global(f"{module}.{name}", self._position)

    def _do_stack_global(self, _: Any) -> None:
        module, name = self._pop(2)
        self._push_global(f"{module.resolved.value}.{name.resolved.value}", module.start)

    def _do_ext1(self, number: int) -> None:
        self._push_global(f"copyreg extension {number}", self._position)

    _do_ext2 = _do_ext4 = _do_ext1

    def _do_inst(self, names: str) -> None:
        start, nodes = self._pop_mark()
        module, _, name = names.partition(" ")
        self._push_global(f"{module}.{name}", start)
        self._push_call(self._stack.pop(), nodes, sum(node.external for node in nodes))

    def _do_obj(self, _: Any) -> None:
        function, *nodes = self._pop_mark()[1]
        self._push_call(function, nodes, sum(node.external for node in nodes))

    def _do_reduce(self, _: Any) -> None:
        function, arguments = self._pop(2)
        self._push_call(function, _items(arguments), arguments.external)

    _do_newobj = _do_reduce

    def _do_newobj_ex(self, _: Any) -> None:
        function, arguments, keywords = self._pop(3)
        self._push_call(function, _items(arguments), arguments.external + keywords.external)

    def _do_build(self, _: Any) -> None:
        [state] = self._pop(1)
        node = self._stack[-1].resolved
        node.external += state.external
        if node.count is not None:  # attributes of a dict or list are not its items
            return
        parts = [state.resolved]
        if state.type == "tuple" and state.resolved.count == 2 and all(child.type in ("dict", "NoneType") for _, child in state.items):
            parts = [child.resolved for _, child in state.items]  # attributes, and attributes in slots
        for part in parts:
            node.take_items(part)
        node.cut(self._depth)
        self.on_build(node)

    def _do_persid(self, id: str) -> None:
        self._push_persistent([atom("str", self._position, id)], self._position)

    def _do_binpersid(self, _: Any) -> None:
        [id] = self._pop(1)
        self._push_persistent(_items(id) or [id], id.start)

    def _push_global(self, name: str, start: int) -> None:
        self.imports.add(name[:300])
        self._push(Node("global", start, name[:300]))

    def _push_call(self, function: Node, arguments: Sequence[Node], external: int) -> None:
        name = str(function.resolved.value or function.type)
        result = Node(name, function.start)
        result.external = external
        result.args = arguments[:MAX_ARGUMENTS]
        describe_call(result, name, [argument.resolved for argument in result.args])
        self._push(result)

    def _push_persistent(self, id: Sequence[Node], start: int) -> None:
        result = Node("persistent id", start)
        result.args = id
        if self._on_persistent is not None:
            self._on_persistent(result)
        self._push(result)


def _items(arguments: Node) -> list[Node]:
    """Return the first items of a tuple of arguments."""
    return [child for _, child in arguments.resolved.items[:MAX_ARGUMENTS]]


_OPERATIONS: Final = {ord(operation.code): operation for operation in pickletools.opcodes}
