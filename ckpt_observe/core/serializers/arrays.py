"""Arrays without copying: numpy arrays anywhere in a state, and torch tensors through them. Extra `arrays`.

A document is one line of JSON with everything that is no array, then the bytes of each array, aligned. Saving hands the
memory of the arrays straight to the store; loading gives arrays that lie in the bytes that were read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ckpt_observe.core import digests
from ckpt_observe.core.blob import Buffer
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
"""Keys up to this size have a digest of their own; hashing larger ones twice would cost more than it tells."""


class _Array(msgspec.Struct, frozen=True):
    """Where an array lies behind the first line, and what it is."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    torch: str = ""


class _Head(msgspec.Struct, frozen=True):
    arrays: tuple[_Array, ...]
    state: Any


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Head).decode


class ArraysSerializer:
    """JSON for what is small, memory as it is for what is large."""

    name = "arrays"

    def dumps(self, state: Any) -> Document:
        taken = _Taken()
        keys: dict[str, KeyInfo] = {}
        try:
            if type(state) in exact.MAPPINGS and exact.TAG not in state and all(type(key) is str for key in state):
                plain: Any = {key: _key(taken, keys, key, value) for key, value in state.items()}
            else:
                plain = exact.wrap(state, _NATIVE, taken.take)
            head = _encode(_Head(tuple(taken.arrays), plain))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise SerializationError(f"this state cannot become arrays: {error}") from error
        padding = b" " * (-(len(head) + 1) % _ALIGNMENT)
        return Document((head + padding + b"\n", *taken.pieces), keys)

    def loads(self, data: Buffer) -> Any:
        view = memoryview(data)
        if view.readonly:  # small or just decompressed: arrays that cannot be written to would surprise
            view = memoryview(bytearray(view))
        try:
            end = bytes(view[: 1 << 20]).find(b"\n") + 1 or bytes(view).index(b"\n") + 1
            head = _decode(view[:end])
            return exact.unwrap(head.state, {"array": lambda index: _array(head.arrays[index], view[end:])})
        except (ValueError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError, msgspec.MsgspecError) as error:
            raise SerializationError(f"these bytes are not arrays: {error}", code="serialization.malformed") from error


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


def _key(taken: _Taken, keys: dict[str, KeyInfo], key: str, value: Any) -> Any:
    first = len(taken.pieces)
    plain = exact.wrap(value, _NATIVE, taken.take)
    pieces = (_encode(plain), *taken.pieces[first:])
    size = sum(map(len, pieces))
    keys[key] = KeyInfo(type_name(value), size, digests.of_key(b"".join(pieces)) if size <= _DIGESTED else "")
    return plain


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
