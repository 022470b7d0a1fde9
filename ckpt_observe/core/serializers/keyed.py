"""What JSON and msgpack share: each top-level key is encoded by itself, so its size and digest cost next to nothing."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.digests import of_key
from ckpt_observe.core.fidelity import kind_name
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers import exact
from ckpt_observe.core.serializers.base import Document
from ckpt_observe.errors import SerializationError

_REFUSALS = (TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, msgspec.MsgspecError)
"""What encoding raises: of a type, of a value, of a state that is too deep or that another thread changes meanwhile."""
_TAG = exact.TAG.encode()
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_.-]{0,63}").fullmatch
_DEEPEST = 20
"""Levels that an error names."""
_RARE = _TAG[:1]


class Keyed(ABC):
    """A format of one document. What a plain encoding would alter is carried tagged; what even that alters is refused."""

    def __init__(self, name: str, encode: Callable[[Any], bytes], decode: Callable[[Buffer], Any], native: frozenset[type]) -> None:
        """`native` are the types that the format brings back as they were."""
        self.name = name
        self.encode = encode
        self.decode = decode
        self.native = native

    @abstractmethod
    def join(self, members: Mapping[str, Buffer]) -> tuple[bytes]:
        """The one piece of a document of these serialized values."""

    @abstractmethod
    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        """Where in a document with these keys each value begins."""

    def alters(self, state: Any, loaded: Any, data: Buffer) -> bool:
        """Whether what comes back equal is another value all the same."""
        return False

    def dumps(self, state: Any) -> Document:
        try:
            document = self._document(state, state)
            data = document.pieces[0]
            loaded = self.decode(data)
            if loaded == state and not _is_tagged(data) and not self.alters(state, loaded, data):
                return document
        except Exception:  # noqa: S110 - perhaps it can be carried tagged; if not, the error comes again
            pass
        try:  # whatever comparing runs, or another thread does to the state meanwhile, may raise
            document = self._tagged(state)
            where = _first_difference(state, self.loads(document.pieces[0]), "state")
        except Exception as error:
            where = self._first_refused(state)
            hint = "convert it, or choose another format: arrays carries those of numpy and torch"
            raise SerializationError(f"{where} cannot become {self.name}: {error}; {hint}") from error
        if where is not None:
            raise SerializationError(f"{where} would not come back from {self.name} as it is: convert it, or choose another format")
        return document

    def loads(self, data: Buffer) -> Any:
        try:
            plain = self.decode(data)
            return exact.unwrap(plain) if _is_tagged(data) else plain
        except _REFUSALS as error:
            raise SerializationError(f"these bytes are not {self.name}: {error}", code="serialization.malformed") from error

    def _first_refused(self, state: Any) -> str:
        """Which part it is that cannot be encoded, as far as that can be told."""
        where, inside = "state", state
        for _ in range(_DEEPEST):
            try:
                parts = inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, list | tuple) else ()
                found = next(((key, part) for key, part in parts if not self._takes(part)), None)
            except Exception:  # another thread may change it meanwhile
                break
            if found is None:
                break
            where, inside = where + _at(found[0]), found[1]
        return where

    def _takes(self, part: Any) -> bool:
        try:
            self.encode(exact.wrap(part, self.native))
        except Exception:
            return False
        return True

    def _tagged(self, state: Any) -> Document:
        if _is_keyed(state):
            return self._document(state, {key: exact.wrap(value, self.native) for key, value in state.items()})
        return self._document(state, exact.wrap(state, self.native))

    def _document(self, state: Any, plain: Any) -> Document:
        encode = self.encode
        if not _is_keyed(state):
            return Document((encode(plain),))
        members, keys = {}, {}
        for key, value in plain.items():
            members[key] = encoded = encode(value)
            keys[key] = KeyInfo(kind_name(type(state[key])), len(encoded), of_key(encoded))
        return Document(self.join(members), keys, members)


def _is_tagged(data: Buffer) -> bool:
    """Whether any value may be tagged. A single rare byte is found twenty times as fast as a word, so it is asked first."""
    text = bytes(data)
    return _RARE in text and _TAG in text


def _is_keyed(state: Any) -> bool:
    """Whether the state is a plain mapping whose keys are all strings."""
    return type(state) is dict and exact.TAG not in state and all(type(key) is str for key in state)


def _at(key: Any) -> str:
    """A step down, for an error's text, which goes to logs and traces: a key that is no plain name may be content."""
    return f"[{key!r}]" if type(key) is int or (type(key) is str and _NAME(key)) else "[…]"


def _first_difference(saved: Any, loaded: Any, path: str) -> str | None:
    if isinstance(saved, float) and isinstance(loaded, float) and saved != saved and loaded != loaded:  # noqa: PLR0124 - not-a-number
        return None
    if isinstance(saved, dict) and isinstance(loaded, dict) and saved.keys() == loaded.keys():
        pairs = [(path + _at(key), saved[key], loaded[key]) for key in saved]
    elif type(saved) is type(loaded) and isinstance(saved, list | tuple) and len(saved) == len(loaded):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(saved, loaded, strict=True))]
    else:
        return None if type(saved) is type(loaded) and saved == loaded else f"{path} ({type(saved).__name__})"
    return next((found for where, a, b in pairs if (found := _first_difference(a, b, where)) is not None), None)
