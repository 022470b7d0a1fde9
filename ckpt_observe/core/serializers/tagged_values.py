"""Encodes Python values that JSON and MessagePack lack as tagged plain data, so that they are loaded as they were saved.

Only the types listed here are supported, never a class by name: loading a checkpoint creates data and runs no code.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

TAG = "~py"
"""A mapping with this key is a tagged value. If a mapping of the state itself has this key, it is tagged as a dict."""

_TO_PLAIN: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: base64.b64encode(value).decode(),
    bytearray: lambda value: base64.b64encode(value).decode(),
    complex: repr,
    float: repr,
    int: str,
    dt.datetime: dt.datetime.isoformat,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    decimal.Decimal: str,
    uuid.UUID: str,
}

_FROM_PLAIN: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda plain: base64.b64decode(plain, validate=True),
    "bytearray": lambda plain: bytearray(base64.b64decode(plain, validate=True)),
    "complex": lambda plain: complex(plain) if isinstance(plain, str) else complex(*plain),
    "float": float,
    "int": int,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda plain: dt.timedelta(*plain),
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda plain: {key: value for key, value in plain},  # noqa: C416 - checks that each item is a pair
}

MAPPINGS: frozenset[type] = frozenset({dict, OrderedDict})
"""An OrderedDict, such as torch's `state_dict()`, is loaded as a dict, which is equal and has the same order."""
SUPPORTED: frozenset[type] = frozenset({list, tuple, set, frozenset, *MAPPINGS, *_TO_PLAIN})
"""Types that `wrap` can encode."""


def wrap(value: Any, native: frozenset[type], replace: Callable[[Any], Any] | None = None) -> Any:
    """Return the value as plain data, with tags for types that the format does not have.

    Values of `native` types stay as they are, except non-finite floats and integers above 63 bits. For all others `replace` is called
    first; it returns a replacement, or NotImplemented to use our tags.
    """
    kind = type(value)
    if kind in native and not (kind is float and not math.isfinite(value)) and not (kind is int and value.bit_length() > 63):
        return value
    if replace is not None and (replacement := replace(value)) is not NotImplemented:
        return replacement
    if kind is list:
        return [wrap(item, native, replace) for item in value]
    if kind in (tuple, set, frozenset):
        return {TAG: kind.__name__, "v": [wrap(item, native, replace) for item in value]}
    if kind in MAPPINGS:
        if TAG not in value and all(type(key) is str for key in value):
            return {key: wrap(item, native, replace) for key, item in value.items()}
        return {TAG: "dict", "v": [[wrap(key, native, replace), wrap(item, native, replace)] for key, item in value.items()]}
    if kind in _TO_PLAIN:
        return {TAG: kind.__name__, "v": _TO_PLAIN[kind](value)}
    return value  # the encoder raises an error that names the type


def unwrap(plain: Any, decoders: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})) -> Any:
    """Return the value that `wrap` encoded. `decoders` maps further tags to functions. ValueError if a tag is unknown."""
    if type(plain) is list:
        return [unwrap(item, decoders) for item in plain]
    if type(plain) is not dict:
        return plain
    if TAG not in plain:
        return {key: unwrap(item, decoders) for key, item in plain.items()}
    decode = _FROM_PLAIN.get(plain[TAG]) or decoders.get(plain[TAG])
    if decode is None or plain.keys() != {TAG, "v"}:
        raise ValueError(f"unknown tag {plain[TAG]!r:.40}")
    return decode(unwrap(plain["v"], decoders))
