"""Whether what came back is what was saved: by the type that the header notes of each key, which costs no second serialization.

Digests say that the bytes are the same. What a reader makes of them is another question: a class that was renamed, a library that is
missing, a format that knows no tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def type_name(value: Any) -> str:
    """As a header notes it: of an array also its element type and shape."""
    return f"array[{value.dtype}{list(value.shape)}]".replace("torch.", "") if hasattr(value, "dtype") else type(value).__name__


def comes_back_as(saved: str, state: Any, key: str) -> bool:
    """Whether that key is in the state, with a value of the type that was saved."""
    if not isinstance(state, Mapping) or key not in state:
        return False
    value = state[key]
    return saved in (type(value).__name__, type_name(value))
