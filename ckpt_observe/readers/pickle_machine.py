"""Follows the opcodes of a pickle without executing them.

Instead of importing and calling, the machine notes names; instead of values, it has nodes with their types and their bytes. The number of
opcodes, the stack and the time are limited.
"""

from __future__ import annotations

import pickletools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.errors import CheckpointError, DeadlineError
from ckpt_observe.readers.pickle_calls import describe_call, describe_state
from ckpt_observe.readers.pickle_nodes import MAX_ARGUMENTS, Composite, Node, atom
from ckpt_observe.readers.pickle_opcodes import argument_reader
from ckpt_observe.readers.pickle_stack import PickleStack
from ckpt_observe.readers.source import Limits, exceeds, how_to_raise, malformed
from ckpt_observe.readers.streams import ByteStream

_MAX_STACK: Final = 2_000_000
_STEPS_PER_CHECK: Final = 1024
_CALL_DEPTH: Final = 4
"""Levels that are always remembered, because the arguments of a call tell dtype and shape."""
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

Hook = Callable[[Composite], None]


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
        self._stack = PickleStack(self._depth)

    def run(self) -> Node:
        """Follow the opcodes to the next STOP, and return the value."""
        stack = self._stack = PickleStack(self._depth)
        stream, actions = self._stream, _ACTIONS
        try:
            while True:
                stack.position = stream.position
                action = actions.get(stream.read_byte())
                if action is None:
                    raise malformed(self._location, f"byte {stack.position} is not an opcode of a pickle")
                self._steps += 1
                if not self._steps % _STEPS_PER_CHECK:
                    self._check_limits()
                read_argument, act = action
                if act is None:
                    return self._finish()
                act(self, read_argument and read_argument(stream))
        except CheckpointError:
            raise
        except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            reason = f"the opcode at byte {self._stack.position} cannot follow those before it ({type(error).__name__}: {error})"
            raise malformed(self._location, reason) from error

    def follow_inner(self) -> None:
        """Follow another pickle in the midst of this one. Both together have the limits of one."""
        inner = PickleMachine(self._stream, self._limits, self._location, depth=1)
        inner.imports, inner._steps, inner._deadline = self.imports, self._steps, self._deadline
        inner.run()
        self._steps = inner._steps

    def _check_limits(self) -> None:
        if self._steps > self._limits.steps:
            raise exceeds(f"the number of opcodes in {self._location}", "steps", self._limits.steps)
        if len(self._stack.values) > _MAX_STACK:
            raise malformed(self._location, f"more than {_MAX_STACK:,} values wait on its stack, which no pickler does")
        if time.monotonic() > self._deadline:
            text = f"reading {self._location} took longer than {self._limits.seconds:g} s"
            raise DeadlineError(f"{text}. If you trust this file, {how_to_raise('seconds')}")

    def _finish(self) -> Node:
        if self._steps > _STEPS_PER_CHECK:
            self._check_limits()
        root = self._stack.values.pop()
        root.size = self._stack.position - root.start
        root.cut(self._depth)
        return root

    # Opcodes that are not in a table above

    def _do_put(self, key: int | None) -> None:
        self._stack.memo[len(self._stack.memo) if key is None else key] = self._stack.top

    def _do_get(self, key: int) -> None:
        self._stack.push_reference(self._stack.memo[key])

    def _do_mark(self, _: Any) -> None:
        self._stack.marks.append((len(self._stack.values), self._stack.position))

    def _do_pop(self, _: Any) -> None:
        if self._stack.marks and self._stack.marks[-1][0] == len(self._stack.values):
            self._stack.marks.pop()
        else:
            self._stack.pop(1)

    def _do_pop_mark(self, _: Any) -> None:
        self._stack.pop_mark()

    def _do_dup(self, _: Any) -> None:
        self._stack.push_reference(self._stack.top)

    def _do_tuple(self, _: Any) -> None:
        self._stack.push_container("tuple", *self._stack.pop_mark())

    def _do_list(self, _: Any) -> None:
        self._stack.push_container("list", *self._stack.pop_mark())

    def _do_frozenset(self, _: Any) -> None:
        self._stack.push_container("frozenset", *self._stack.pop_mark())

    def _do_dict(self, _: Any) -> None:
        start, nodes = self._stack.pop_mark()
        self._stack.push_container("dict", start, ())
        self._stack.add_pairs(self._stack.container, nodes)

    def _do_append(self, _: Any) -> None:
        nodes = self._stack.pop(1)
        self._stack.add_values(self._stack.container, nodes)

    def _do_appends(self, _: Any) -> None:
        nodes = self._stack.pop_mark()[1]
        self._stack.add_values(self._stack.container, nodes)

    _do_additems = _do_appends

    def _do_setitem(self, _: Any) -> None:
        nodes = self._stack.pop(2)
        self._stack.add_pairs(self._stack.container, nodes)

    def _do_setitems(self, _: Any) -> None:
        nodes = self._stack.pop_mark()[1]
        self._stack.add_pairs(self._stack.container, nodes)

    def _do_proto(self, _: Any) -> None:
        pass

    def _do_frame(self, _: Any) -> None:
        pass  # the opcodes of a frame follow as usual

    def _do_readonly_buffer(self, _: Any) -> None:
        pass

    # Names and calls

    def _do_global(self, names: str) -> None:
        module, _, name = names.partition(" ")
        self._push_global(f"{module}.{name}", self._stack.position)

    def _do_stack_global(self, _: Any) -> None:
        module, name = self._stack.pop(2)
        self._push_global(f"{module.resolved.value}.{name.resolved.value}", module.start)

    def _do_ext1(self, number: int) -> None:
        self._push_global(f"copyreg extension {number}", self._stack.position)

    _do_ext2 = _do_ext4 = _do_ext1

    def _do_inst(self, names: str) -> None:
        start, nodes = self._stack.pop_mark()
        module, _, name = names.partition(" ")
        self._push_global(f"{module}.{name}", start)
        self._push_call(self._stack.values.pop(), nodes, sum(node.external for node in nodes))

    def _do_obj(self, _: Any) -> None:
        function, *nodes = self._stack.pop_mark()[1]
        self._push_call(function, nodes, sum(node.external for node in nodes))

    def _do_reduce(self, _: Any) -> None:
        function, arguments = self._stack.pop(2)
        self._push_call(function, _items(arguments), arguments.external)

    _do_newobj = _do_reduce

    def _do_newobj_ex(self, _: Any) -> None:
        function, arguments, keywords = self._stack.pop(3)
        self._push_call(function, _items(arguments), arguments.external + keywords.external)

    def _do_build(self, _: Any) -> None:
        [state] = self._stack.pop(1)
        node = self._stack.container
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
        self._push_persistent([atom("str", self._stack.position, id)], self._stack.position)

    def _do_binpersid(self, _: Any) -> None:
        [id] = self._stack.pop(1)
        self._push_persistent(_items(id) or [id], id.start)

    def _push_global(self, name: str, start: int) -> None:
        self.imports.add(name[:300])
        self._stack.push(Composite("global", start, name[:300]))

    def _push_call(self, function: Node, arguments: Sequence[Node], external: int) -> None:
        name = str(function.resolved.value or function.type)
        result = Composite(name, function.start)
        result.external = external
        result.args = arguments[:MAX_ARGUMENTS]
        describe_call(result, name, [argument.resolved for argument in result.args])
        self._stack.push(result)

    def _push_persistent(self, id: Sequence[Node], start: int) -> None:
        result = Composite("persistent id", start)
        result.args = id
        if self._on_persistent is not None:
            self._on_persistent(result)
        self._stack.push(result)


def _items(arguments: Node) -> list[Node]:
    """Return the first items of a tuple of arguments."""
    return [child for _, child in arguments.resolved.items[:MAX_ARGUMENTS]]


Action = Callable[[PickleMachine, Any], None]


def _action_of(name: str) -> Action | None:
    """Return what an opcode does; None for the one that ends a pickle."""
    if name == "STOP":
        return None
    if name in _ATOMS:
        kind = _ATOMS[name]
        return lambda machine, argument: machine._stack.push(atom(kind, machine._stack.position, argument))
    if name in _CONSTANTS:
        constant = _CONSTANTS[name]
        return lambda machine, _: machine._stack.push(Node(constant[0], machine._stack.position, constant[1]))
    if name in _EMPTY:
        return lambda machine, _: machine._stack.push_container(_EMPTY[name], machine._stack.position, ())
    if name in _TUPLES:
        return lambda machine, _: machine._stack.push_sequence("tuple", machine._stack.pop(_TUPLES[name]))
    if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
        return PickleMachine._do_put
    if name in ("GET", "BINGET", "LONG_BINGET"):
        return PickleMachine._do_get
    action: Action = getattr(PickleMachine, f"_do_{name.lower()}")
    return action


_ACTIONS: Final = {ord(opcode.code): (argument_reader(opcode), _action_of(opcode.name)) for opcode in pickletools.opcodes}
"""How to read the argument of each opcode, and what the opcode does."""
