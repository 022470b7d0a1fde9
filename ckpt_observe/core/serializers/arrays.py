"""Arrays without copying: numpy arrays anywhere in a state, and torch tensors through them. Extra `arrays`.

A value is one line of JSON with everything that is no array, then the bytes of each array, aligned. A state that is a mapping is one
line with the sizes of its keys, then each value by itself, so that one can be compared, left out or read without the others. Saving
hands the memory of the arrays straight to the store; loading gives arrays that lie in the bytes that were read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ckpt_observe.core import digests
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.fidelity import type_name
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers import exact
from ckpt_observe.core.serializers.base import Document
from ckpt_observe.errors import MissingExtraError, SerializationError

try:
    import numpy as np
except ImportError as error:
    raise MissingExtraError("the arrays format", "arrays") from error

_ALIGNMENT = 64
_KINDS = frozenset("biufcmMSU")
"""Kinds of numpy type that are data alone. Objects and records are refused."""
_NATIVE: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_EQUAL = (str, int, float)
"""A kind of these, such as a member of an IntEnum, comes back equal."""
_DIGESTED = 1024 * 1024
"""Values up to this size are hashed at once; larger ones when the program need not wait for it."""
_SHORT = 4096
"""Bytes in which most first lines end."""


_REFUSALS = (ValueError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError, SyntaxError, msgspec.MsgspecError)
"""What numpy, torch and msgspec raise of bytes that are none of ours."""


class _Array(msgspec.Struct, frozen=True):
    """Where an array lies behind the first line, and what it is."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    torch: str = ""


class _Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """A first line: of a value, or with `keys` of a mapping of values."""

    arrays: tuple[_Array, ...] = ()
    state: Any = None
    keys: dict[str, int] | None = None
    """Bytes of each value, in their order."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Head).decode


class ArraysSerializer:
    """JSON for what is small, memory as it is for what is large."""

    name = "arrays"

    def dumps(self, state: Any) -> Document:
        try:
            if type(state) not in exact.MAPPINGS or exact.TAG in state or not all(type(key) is str for key in state):
                return Document(_value(state).pieces)
            members = {key: _value(value) for key, value in state.items()}
            keys = {key: KeyInfo(type_name(state[key]), len(member), _digest(member)) for key, member in members.items()}
        except (TypeError, ValueError, LookupError, RuntimeError, msgspec.MsgspecError) as error:
            raise SerializationError(f"this state cannot become arrays: {error}") from error
        return Document(self.join(members), keys, members)

    def loads(self, data: Buffer) -> Any:
        view = memoryview(data)
        if view.readonly:  # small or just decompressed: arrays that cannot be written to would surprise
            view = memoryview(bytearray(view))
        try:
            head, end = _first_line(view)
            if head.keys is None:
                return _state(head, view[end:])
            state = {}
            for key, size in head.keys.items():
                if not 0 < size <= len(view) - end:
                    raise ValueError(f"{key!r} lies outside of the document")
                of_key, start = _first_line(view[end : end + size])
                state[key] = _state(of_key, view[end + start : end + size])
                end += size
            return state
        except MissingExtraError:
            raise
        except _REFUSALS as error:
            raise SerializationError(f"these bytes are not arrays: {error}", code="serialization.malformed") from error

    def join(self, members: Mapping[str, Blob]) -> list[Buffer]:
        sizes = {key: len(member) for key, member in members.items()}
        return [_line(_Head(keys=sizes)), *(piece for member in members.values() for piece in member)]

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        found = {}
        position = len(_line(_Head(keys={key: info.size for key, info in keys.items()})))
        for key, info in keys.items():
            found[key] = position
            position += info.size
        return found


def _value(value: Any) -> Blob:
    taken = _Taken()
    plain = exact.wrap(value, _NATIVE, taken.take)
    line = _line(_Head(tuple(taken.arrays), plain))
    exact.unwrap(_decode(line).state, {"array": lambda _: None})  # what could not be read again, for it is too deep, is refused now
    return Blob((line, *taken.pieces))


def _digest(member: Blob) -> str:
    return digests.of_key(member.joined()) if len(member) <= _DIGESTED else ""


def _line(head: _Head) -> bytes:
    text = _encode(head)
    return text + b" " * (-(len(text) + 1) % _ALIGNMENT) + b"\n"


def _first_line(view: memoryview) -> tuple[_Head, int]:
    """What begins here, and where its line ends."""
    size = _SHORT
    while not (end := bytes(view[:size]).find(b"\n") + 1):
        if size >= len(view):
            raise ValueError("the first line has no end")
        size *= 16
    return _decode(view[:end]), end


def _state(head: _Head, memory: memoryview) -> Any:
    return exact.unwrap(head.state, {"array": lambda index: _array(head.arrays[index], memory)})


class _Taken:
    """Arrays taken out of a state, and the pieces of memory they are in."""

    def __init__(self) -> None:
        self.arrays: list[_Array] = []
        self.pieces: list[Buffer] = []
        self._offset = 0

    def take(self, value: Any) -> Any:
        """A reference to put in the array's place; NotImplemented for what is no array and can be carried all the same."""
        array, torch = _as_numpy(value)
        if array is None:
            if type(value) in exact.KINDS or isinstance(value, _EQUAL):
                return NotImplemented
            raise SerializationError(f"a {type(value).__name__} would not come back from arrays as it is: convert it")
        if array.dtype.kind not in _KINDS:
            raise SerializationError(f"an array of {array.dtype} holds more than data: convert it")
        flat = np.ascontiguousarray(array)
        memory = memoryview(flat.reshape(-1).view(np.uint8)) if flat.nbytes else memoryview(b"")
        self.arrays.append(_Array(array.dtype.str, array.shape, self._offset, flat.nbytes, torch))
        padding = -flat.nbytes % _ALIGNMENT
        self.pieces += (memory, bytes(padding)) if padding else (memory,)
        self._offset += flat.nbytes + padding
        return {exact.TAG: "array", "v": len(self.arrays) - 1}


def _as_numpy(value: Any) -> tuple[Any, str]:
    if type(value) in (np.ndarray, np.memmap):  # what is more than an array, such as a masked one, would lose that
        return value, ""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None, ""
    tensor = value.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(torch.int16) if name == "bfloat16" else tensor).numpy(), name  # numpy has no bfloat16


def _array(place: _Array, memory: memoryview) -> Any:
    dtype = np.dtype(place.dtype)
    if dtype.kind not in _KINDS or place.offset < 0 or place.size < 0 or place.offset + place.size > len(memory):
        raise ValueError("an array lies outside of the document")
    array = np.frombuffer(memory[place.offset : place.offset + place.size], dtype).reshape(place.shape)
    if not place.torch:
        return array
    return _as_torch(place.torch)(array)


def _as_torch(name: str) -> Callable[[Any], Any]:
    try:
        import torch  # noqa: PLC0415 - only where tensors were saved
    except ImportError as error:
        raise MissingExtraError("a checkpoint with torch tensors", "torch") from error
    return lambda array: torch.from_numpy(array).view(getattr(torch, name))
