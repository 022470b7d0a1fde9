"""The output of commands for programs: with `--json`, each line is one JSON object, of a type that has a published schema.

A module of commands has a table `JSON` with the type of each command. `ckpt-observe reference` writes the schemas to `docs/schemas`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

import msgspec


def print_structs(structs: Iterable[msgspec.Struct]) -> None:
    """Print each struct as a line of JSON."""
    for struct in structs:
        print_json(_encode(struct))


def _encode(struct: msgspec.Struct) -> str:
    """Return a struct as JSON. Bytes of a path that are not UTF-8, and broken characters of a pickle, become escapes of JSON."""
    try:
        return msgspec.json.encode(struct).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(struct, str_keys=True), separators=(",", ":"))


def print_json(line: str) -> None:
    """Print a line of JSON. Characters that the encoding lacks become escapes of JSON, so that no value changes."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        line = re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], line)
    print(line)


def schema(command: str, kind: Any) -> dict[str, Any]:
    """Return the JSON schema of the lines that a command prints."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of `ckpt-observe {command} --json`",
        **_sort_choices(msgspec.json.schema(kind)),
    }


def _sort_choices(part: Any) -> Any:
    """Put the choices of `anyOf` into one order: that of msgspec depends on its version."""
    if isinstance(part, list):
        return [_sort_choices(item) for item in part]
    if not isinstance(part, dict):
        return part
    sorted_part = {name: _sort_choices(value) for name, value in part.items()}
    if "anyOf" in sorted_part:
        sorted_part["anyOf"].sort(key=lambda choice: json.dumps(choice, sort_keys=True))
    return sorted_part
