"""Python values that JSON and MessagePack do not have, carried as tagged plain data: what comes back is what was saved.

Only values on this list, never a class by name: reading a checkpoint makes data and runs nothing.
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
"""A mapping with this key is a tagged value; a mapping of the program's that has it is itself carried tagged."""

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
"""An ordered mapping comes back as a plain one, which is equal and as ordered. `state_dict` of torch makes such."""
KINDS: frozenset[type] = frozenset({list, tuple, set, frozenset, *MAPPINGS, *_TO_PLAIN})
"""What `wrap` knows how to carry."""


def wrap(value: Any, native: frozenset[type], take: Callable[[Any], Any] | None = None) -> Any:
    """The value as plain data; what the format has of its own (`native`) stays as it is.

    `take` is asked first about each value, and gives what stands for it or NotImplemented.
    """
    kind = type(value)
    if kind in native and not (kind is float and not math.isfinite(value)) and not (kind is int and value.bit_length() > 63):
        return value
    if take is not None and (taken := take(value)) is not NotImplemented:
        return taken
    if kind is list:
        return [wrap(item, native, take) for item in value]
    if kind in (tuple, set, frozenset):
        return {TAG: kind.__name__, "v": [wrap(item, native, take) for item in value]}
    if kind in MAPPINGS:
        if TAG not in value and all(type(key) is str for key in value):
            return {key: wrap(item, native, take) for key, item in value.items()}
        return {TAG: "dict", "v": [[wrap(key, native, take), wrap(item, native, take)] for key, item in value.items()]}
    if kind in _TO_PLAIN:
        return {TAG: kind.__name__, "v": _TO_PLAIN[kind](value)}
    return value  # the format refuses it, and says what it is


def unwrap(plain: Any, more: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})) -> Any:
    """The value that `wrap` was given. A tag that is neither on the list nor in `more` is ValueError."""
    if type(plain) is list:
        return [unwrap(item, more) for item in plain]
    if type(plain) is not dict:
        return plain
    if TAG not in plain:
        return {key: unwrap(item, more) for key, item in plain.items()}
    make = _FROM_PLAIN.get(plain[TAG]) or more.get(plain[TAG])
    if make is None or plain.keys() != {TAG, "v"}:
        raise ValueError(f"a value is tagged {plain[TAG]!r:.40}, which is not known here")
    return make(unwrap(plain["v"], more))
