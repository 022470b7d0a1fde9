"""The base of the JSON and MessagePack formats. Each top-level key is encoded separately, so its size and digest are almost free."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ckpt_observe.core.format.blob import Buffer
from ckpt_observe.core.format.digests import compute_key
from ckpt_observe.core.format.state_summary import name_of_type
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers import tagged_values
from ckpt_observe.core.serializers.concurrent_change import concurrent_change_error, is_concurrent_change
from ckpt_observe.core.serializers.serializer import Document
from ckpt_observe.errors import SerializationError
from ckpt_observe.support.host_exceptions import raise_host_exception

_DECODE_ERRORS = (TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, msgspec.MsgspecError)
_TAG = tagged_values.TAG.encode()
_RARE = _TAG[:1]
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_.-]{0,63}").fullmatch
_MAX_PATH = 20
"""Levels of nesting that the path in an error message shows."""


class _Attempt(NamedTuple):
    """The result of encoding a state. Two attempts with the same state have the same `content` and `problem`."""

    content: bytes
    problem: str | None
    """Why the document cannot be used; None if it can."""
    document: Document
    cause: Exception | None


class KeyedFormat(ABC):
    """A format with one document per state.

    The plain encoding is tried first. If loading it would change a value, the state is encoded with tagged values; if even those would
    change it, the state is refused.
    """

    def __init__(self, name: str, encode: Callable[[Any], Buffer], decode: Callable[[Buffer], Any], native: frozenset[type]) -> None:
        """`native` are the types that the format itself restores exactly."""
        self.name = name
        self.encode = encode
        self.decode = decode
        self.native = native

    @abstractmethod
    def join(self, members: Mapping[str, Buffer]) -> tuple[bytes]:
        """Return a document with these serialized values by key, as one piece."""

    @abstractmethod
    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        """Return the offset of each value in a document with these keys."""

    def alters(self, state: Any, loaded: Any, data: Buffer) -> bool:
        """Return whether the plain encoding changed a value although `loaded == state`, such as the zone of a time."""
        return False

    def dumps(self, state: Any) -> Document:
        try:
            document = self._encode(state, state)
            data = document.pieces[0]
            loaded = self.decode(data)
            if loaded == state and not _is_tagged(data) and not self.alters(state, loaded, data):
                return document
        except MemoryError:
            raise
        except Exception as caught:  # tagged values may work; if not, the error is raised below
            raise_host_exception(caught)
        first = self._encode_checked(state)
        last = first if first.problem is None else self._encode_checked(state)  # again: the problem may be that the state was changing
        if last.problem is None:
            return last.document
        if last[:2] != first[:2] or is_concurrent_change(last.cause):
            raise concurrent_change_error("nothing was saved") from last.cause
        raise SerializationError(last.problem) from last.cause

    def _encode_checked(self, state: Any) -> _Attempt:
        """Encode a state with tagged values, and compare what would be loaded."""
        document = Document(())
        try:  # comparing runs code of the state, and another thread may be changing it: anything may be raised
            document = self._encode_tagged(state)
            path = _first_difference(state, self.loads(document.pieces[0]), "state")
        except MemoryError:
            raise
        except Exception as error:
            raise_host_exception(error)
            path = self._first_refused(state)
            hint = "convert it, or use another format (arrays supports numpy and torch)"
            return _Attempt(bytes(document), f"{path} cannot be saved as {self.name}: {error}; {hint}", document, error)
        problem = f"{path} would not be loaded from {self.name} as it was saved: convert it, or use another format"
        return _Attempt(bytes(document), None if path is None else problem, document, None)

    def loads(self, data: Buffer) -> Any:
        try:
            plain = self.decode(data)
            return tagged_values.unwrap(plain) if _is_tagged(data) else plain
        except _DECODE_ERRORS as error:
            raise SerializationError(f"these bytes are not {self.name}: {error}", code="serialization.malformed") from error

    def _first_refused(self, state: Any) -> str:
        """Return the path of the first value that cannot be encoded, such as `state['a'][0]`, as deep as it can be determined."""
        path, value = "state", state
        for _ in range(_MAX_PATH):
            try:
                children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
                refused = next(((key, child) for key, child in children if not self._accepts(child)), None)
            except Exception as error:  # another thread may be changing the state
                raise_host_exception(error)
                break
            if refused is None:
                break
            path, value = path + _path_step(refused[0]), refused[1]
        return path

    def _accepts(self, value: Any) -> bool:
        try:
            self.encode(tagged_values.wrap(value, self.native))
        except Exception as error:
            raise_host_exception(error)
            return False
        return True

    def _encode_tagged(self, state: Any) -> Document:
        if _is_keyed(state):
            return self._encode(state, {key: tagged_values.wrap(value, self.native) for key, value in state.items()})
        return self._encode(state, tagged_values.wrap(state, self.native))

    def _encode(self, state: Any, plain: Any) -> Document:
        encode = self.encode
        if not _is_keyed(state):
            return Document((bytes(encode(plain)),))
        members, keys = {}, {}
        for key, value in plain.items():
            members[key] = encoded = encode(value)
            keys[key] = KeyInfo(name_of_type(type(state[key])), len(encoded), compute_key(encoded))
        return Document(self.join(members), keys, members)


def _is_tagged(data: Buffer) -> bool:
    """Return whether any value may be tagged. Searching for one rare byte first is twenty times as fast as for the whole tag."""
    text = bytes(data)
    return _RARE in text and _TAG in text


def _is_keyed(state: Any) -> bool:
    """Return whether the state is a plain dict whose keys are all strings."""
    return type(state) is dict and tagged_values.TAG not in state and all(type(key) is str for key in state)


def _path_step(key: Any) -> str:
    """Return one step of a path for an error message. Messages go to logs and traces, so keys that may be content are hidden."""
    return f"[{key!r}]" if type(key) is int or (type(key) is str and _NAME(key)) else "[…]"


def _first_difference(saved: Any, loaded: Any, path: str) -> str | None:
    if isinstance(saved, float) and isinstance(loaded, float) and saved != saved and loaded != loaded:  # noqa: PLR0124 - both are NaN
        return None
    if isinstance(saved, dict) and isinstance(loaded, dict) and saved.keys() == loaded.keys():
        pairs = [(path + _path_step(key), saved[key], loaded[key]) for key in saved]
    elif type(saved) is type(loaded) and isinstance(saved, list | tuple) and len(saved) == len(loaded):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(saved, loaded, strict=True))]
    else:
        return None if type(saved) is type(loaded) and saved == loaded else f"{path} ({type(saved).__name__})"
    return next((difference for step, a, b in pairs if (difference := _first_difference(a, b, step)) is not None), None)
