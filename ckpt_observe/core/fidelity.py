"""Whether what came back is what was saved: by the type that the header notes of each key, which costs no second serialization.

Digests say that the bytes are the same. What a reader makes of them is another question: a class that was renamed, a library that is
missing, a format that knows no tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLAIN = (dict, str, int, float)
_NAMES = {kind: kind.__name__ for kind in (*_PLAIN, bool, list, tuple, type(None))}
"""Nearly all values are of these."""


def kind_name(kind: type) -> str:
    """As a header notes it: a kind of a plain type (`OrderedDict`, an `IntEnum`) is noted as that type, for so it comes back."""
    return _NAMES.get(kind) or next((plain.__name__ for plain in _PLAIN if issubclass(kind, plain)), kind.__name__)


def type_name(value: Any) -> str:
    """The same of a value: of an array also its element type and shape."""
    return f"array[{value.dtype}{list(value.shape)}]".replace("torch.", "") if hasattr(value, "dtype") else kind_name(type(value))


def comes_back_as(saved: str, state: Any, key: str) -> bool:
    """Whether that key is in the state, with a value of the type that was saved."""
    if not isinstance(state, Mapping) or key not in state:
        return False
    value = state[key]
    return saved in (kind_name(type(value)), type_name(value))
