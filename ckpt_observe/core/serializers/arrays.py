"""Arrays without copying: numpy arrays and torch tensors anywhere in a state. Extra `arrays`.

A value is one line of JSON with everything except the arrays, followed by the bytes of each array, aligned. A state that is a mapping is
one line with the sizes of its keys, followed by each value, so that a value can be compared, omitted or read on its own. Saving passes
the memory of the arrays directly to the store; loading returns arrays that are views of the bytes that were read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ckpt_observe.core.format import digests
from ckpt_observe.core.format.blob import Blob, Buffer, safe_encode
from ckpt_observe.core.format.state_summary import describe_type
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers import tagged_values
from ckpt_observe.core.serializers.concurrent_change import concurrent_change_error, is_concurrent_change
from ckpt_observe.core.serializers.serializer import Document
from ckpt_observe.errors import MissingExtraError, SerializationError
from ckpt_observe.support.host_exceptions import raise_host_exception

try:
    import numpy as np
except ImportError as error:
    raise MissingExtraError("the arrays format", "arrays") from error

_ALIGNMENT = 64
_KINDS = frozenset("biufcmMSU")
"""numpy's codes for types that are plain data. Objects and records are refused."""
_NATIVE: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_EQUAL = (str, int, float)
"""A subclass of these, such as a member of an IntEnum, is loaded as an equal value of the plain type."""
_HASHED_AT_ONCE = 1024 * 1024
"""Bytes. Values up to this size are hashed in `dumps`; larger ones later, usually while the store writes."""
_LINE_GUESS = 4096
"""Bytes that are searched first for the end of the first line. Most first lines are shorter."""

_DECODE_ERRORS = (ValueError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError, SyntaxError, msgspec.MsgspecError)
"""What numpy, torch and msgspec raise for invalid bytes."""


class _ArrayInfo(msgspec.Struct, frozen=True):
    """Type and shape of an array, and its position after the first line."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    torch: str = ""
    """Element type of the tensor if it was a torch tensor; empty for a numpy array."""


class _Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a value or, with `keys`, of a mapping."""

    arrays: tuple[_ArrayInfo, ...] = ()
    state: Any = None
    keys: dict[str, int] | None = None
    """Size of each value in bytes, in the order of the values; None if the state is not a mapping."""


_encode = safe_encode(msgspec.json.Encoder())
_decode = msgspec.json.Decoder(_Head).decode


class ArraysSerializer:
    """JSON, followed by the memory of the arrays."""

    name = "arrays"

    def dumps(self, state: Any) -> Document:
        try:
            if type(state) not in tagged_values.MAPPINGS or tagged_values.TAG in state or not all(type(key) is str for key in state):
                return Document(_dump_value(state).pieces)
            members, keys = {}, {}
            for key, value in state.items():
                members[key] = member = _dump_value(value)
                keys[key] = KeyInfo(describe_type(value), len(member), _digest(member))
            return Document(self.join(members), keys, members)
        except (TypeError, ValueError, LookupError, RuntimeError, msgspec.MsgspecError) as error:
            raise_host_exception(error)
            if is_concurrent_change(error):
                raise concurrent_change_error("nothing was saved") from error
            raise SerializationError(f"this state cannot be saved in the arrays format: {error}") from error

    def loads(self, data: Buffer) -> Any:
        view = memoryview(data)
        if view.readonly:  # small or just decompressed: copy it, so that the loaded arrays are writable
            view = memoryview(bytearray(view))
        try:
            head, end = _read_head(view)
            if head.keys is None:
                return _load_value(head, view[end:])
            state = {}
            for key, size in head.keys.items():
                if not 0 < size <= len(view) - end:
                    raise ValueError(f"the value of {key!r} is outside the document")
                value_head, start = _read_head(view[end : end + size])
                state[key] = _load_value(value_head, view[end + start : end + size])
                end += size
            return state
        except MissingExtraError:
            raise
        except _DECODE_ERRORS as error:
            raise SerializationError(f"these bytes are not in the arrays format: {error}", code="serialization.malformed") from error

    def join(self, members: Mapping[str, Blob]) -> list[Buffer]:
        sizes = {key: len(member) for key, member in members.items()}
        return [_line(_Head(keys=sizes)), *(piece for member in members.values() for piece in member)]

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        offsets = {}
        position = len(_line(_Head(keys={key: info.size for key, info in keys.items()})))
        for key, info in keys.items():
            offsets[key] = position
            position += info.size
        return offsets


def _dump_value(value: Any) -> Blob:
    extracted = _ExtractedArrays()
    plain = tagged_values.wrap(value, _NATIVE, extracted.extract)
    line = _line(_Head(tuple(extracted.arrays), plain))
    tagged_values.unwrap(_decode(line).state, {"array": lambda _: None})  # raises if the value is nested too deep to be loaded
    return Blob((line, *extracted.pieces))


def _digest(member: Blob) -> str:
    return digests.compute_key(member.joined()) if len(member) <= _HASHED_AT_ONCE else ""


def _line(head: _Head) -> bytes:
    text = bytes(_encode(head))
    return text + b" " * (-(len(text) + 1) % _ALIGNMENT) + b"\n"


def _read_head(view: memoryview) -> tuple[_Head, int]:
    """Return the head and the end of its line."""
    size = _LINE_GUESS
    while not (end := bytes(view[:size]).find(b"\n") + 1):
        if size >= len(view):
            raise ValueError("the first line has no end")
        size *= 16
    return _decode(view[:end]), end


def _load_value(head: _Head, memory: memoryview) -> Any:
    return tagged_values.unwrap(head.state, {"array": lambda index: _load_array(head.arrays[index], memory)})


class _ExtractedArrays:
    """Collects the arrays of a value and their memory."""

    def __init__(self) -> None:
        self.arrays: list[_ArrayInfo] = []
        self.pieces: list[Buffer] = []
        self._offset = 0

    def extract(self, value: Any) -> Any:
        """Return a reference that replaces an array; NotImplemented for other values that can be saved. SerializationError for the rest."""
        array, torch = _as_numpy(value)
        if array is None:
            if type(value) in tagged_values.SUPPORTED or isinstance(value, _EQUAL):
                return NotImplemented
            raise SerializationError(f"a {type(value).__name__} would not be loaded as it was saved: convert it to a supported type")
        if array.dtype.kind not in _KINDS:
            raise SerializationError(f"cannot save an array of {array.dtype}: convert it to numbers, text or times")
        flat = np.ascontiguousarray(array)
        memory = memoryview(flat.reshape(-1).view(np.uint8)) if flat.nbytes else memoryview(b"")
        self.arrays.append(_ArrayInfo(array.dtype.str, array.shape, self._offset, flat.nbytes, torch))
        padding = -flat.nbytes % _ALIGNMENT
        self.pieces += (memory, bytes(padding)) if padding else (memory,)
        self._offset += flat.nbytes + padding
        return {tagged_values.TAG: "array", "v": len(self.arrays) - 1}


def _as_numpy(value: Any) -> tuple[Any, str]:
    """Return an array or tensor as a numpy array, and the dtype of a tensor or an empty string. The array is None for anything else."""
    if type(value) in (np.ndarray, np.memmap):  # not for other subclasses, such as masked arrays, which are more than their data
        return value, ""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None, ""
    tensor = value.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(torch.int16) if name == "bfloat16" else tensor).numpy(), name  # numpy has no bfloat16


def _load_array(info: _ArrayInfo, memory: memoryview) -> Any:
    dtype = np.dtype(info.dtype)
    if dtype.kind not in _KINDS or info.offset < 0 or info.size < 0 or info.offset + info.size > len(memory):
        raise ValueError("an array is outside the document")
    array = np.frombuffer(memory[info.offset : info.offset + info.size], dtype).reshape(info.shape)
    if not info.torch:
        return array
    return _torch_converter(info.torch)(array)


def _torch_converter(name: str) -> Callable[[Any], Any]:
    try:
        import torch  # noqa: PLC0415 - needed only if tensors were saved
    except ImportError as error:
        raise MissingExtraError("a checkpoint with torch tensors", package="torch") from error
    return lambda array: torch.from_numpy(array).view(getattr(torch, name))
