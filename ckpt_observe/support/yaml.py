"""Writes plain data as YAML for people: block style, no anchors, quotes only where needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z_][\w.-]*|\d+[smhd]")
"""Strings that need no quotes, except for the words below."""
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def dump(value: Any) -> str:
    """Return a document. Values are dicts, lists, strings, numbers, booleans and None."""
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
    elif isinstance(item, str) and "\n" in item:
        yield f"{key} |-"
        yield from _indented(item.splitlines())
    else:
        yield f"{key} {_scalar(item)}"


def _indented(lines: Any) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, str) and '"' in value and not re.search(r"['\x00-\x1f\x7f]", value):
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)  # JSON is YAML
