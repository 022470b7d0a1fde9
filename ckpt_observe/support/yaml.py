"""Writes plain data as YAML for people: block style, no anchors, quotes only where needed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z_][\w.-]*|\d+[smhd]")
"""Strings that need no quotes, except for `_WORDS`, which YAML takes for booleans or null."""
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_UNREADABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON accepts as they are, and YAML does not, or takes for the end of a line."""


def dump(value: Any) -> str:
    """Return a dict or list as a YAML document. It may contain dicts, lists, strings, numbers, booleans and None."""
    return "\n".join(_block(value)) + "\n"


def _block(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _member(f"{_scalar(key)}:", item)
    else:
        for item in value:
            lines = list(_block(item)) if isinstance(item, dict | list) and item else [_scalar(item)]
            yield f"- {lines[0]}"
            yield from _indented(lines[1:])


def _member(key: str, item: Any) -> Iterator[str]:
    if isinstance(item, dict | list) and item:
        yield key
        yield from _indented(_block(item))
    elif isinstance(item, str) and _fits_block(item):
        yield f"{key} |-"
        yield from _indented(item.splitlines())
    else:
        yield f"{key} {_scalar(item)}"


def _fits_block(text: str) -> bool:
    """Return whether a text of several lines can be written as it is. Others are quoted, so that nothing is lost."""
    lines = text.split("\n")
    return len(lines) > 1 and all(map(str.isprintable, lines)) and bool(lines[-1]) and lines[0][:1] not in ("", " ")


def _indented(lines: Any) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, str) and '"' in value and not re.search(r"['\x00-\x1f\x7f]", value):
        return f"'{value}'"
    if isinstance(value, float):
        return _number(value)
    text = json.dumps(value, ensure_ascii=False)  # JSON is YAML
    return _UNREADABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    # YAML 1.1 requires a decimal point and a signed exponent.
    return f"{digits if '.' in digits else digits + '.0'}e{exponent if exponent[0] in '+-' else '+' + exponent}"
