"""Formats a checkpoint as Markdown, YAML or JSON, for people to read. The text cannot be loaded as a checkpoint again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError, SerializationError
from ckpt_observe.support import yaml
from ckpt_observe.support.formatting import printable
from ckpt_observe.support.host_exceptions import raise_host_exception

Style = Literal["markdown", "yaml", "json"]


def extract(info: CheckpointInfo, state: Any, style: Style) -> str:
    """Return header and state of a checkpoint as text that ends with a newline. Markdown shows only the main fields of the header."""
    if style not in get_args(Style):
        raise ConfigError(f"unknown style {style!r:.80}; use one of: {', '.join(get_args(Style))}")
    try:
        return _text(info, _plain(state), style)
    except Exception as error:  # nested too deep, not encodable, or raised by the repr of a user object
        raise_host_exception(error)
        raise SerializationError(f"cannot format this state as {style}: {error}") from error


def _text(info: CheckpointInfo, state: Any, style: Style) -> str:
    if style == "markdown":
        return _markdown(info, state)
    document = {"summary": msgspec.to_builtins(info), "state": state}
    if style == "yaml":
        return yaml.dump(document).encode().decode()  # encoding refuses surrogates
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _plain(state: Any) -> Any:
    """Convert a state to the types of JSON, for display only."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in zip(_names(state), state.values(), strict=True)}
    if isinstance(state, list | tuple | set | frozenset):
        return [_plain(item) for item in state]
    return msgspec.to_builtins(state, str_keys=True, enc_hook=_describe)


def _names(state: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the keys as strings. A key that is not a string becomes `str(key)`, with its type appended if that is a key already."""
    used_names = {key for key in state if isinstance(key, str)}
    for key in state:
        if isinstance(key, str):
            yield key
            continue
        name = str(key)
        while name in used_names:
            name = f"{name} ({type(key).__name__})"
        used_names.add(name)
        yield name


def _describe(value: Any) -> str:
    """Describe a value that JSON does not have: an array by type and shape, anything else by the start of its repr."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{type(value).__name__} {dtype} {list(shape)}" if shape and dtype is not None else repr(value)[:200]


def _markdown(info: CheckpointInfo, state: Any) -> str:
    summary = {
        "task": info.task,
        "step": info.step,
        "status": info.status,
        "created": info.created.isoformat(),
        "size": f"{info.serialized_size} bytes, {info.stored_size} stored ({info.format}, {info.codec})",
        "parent": info.parent,
        "tags": ", ".join(info.tags) or None,
    }
    lines = [f"# Checkpoint {_cell(info.id)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(str(value))} |" for name, value in summary.items() if value is not None]
    if info.keys:
        lines += ["", "## Keys", "", "| key | type | bytes |", "|---|---|---|"]
        lines += [f"| {_cell(name)} | {_cell(key.type)} | {key.size} |" for name, key in info.keys.items()]
    for title, content in (("Metadata", info.metadata), ("State", state)):
        if content or title == "State":  # a state may be 0 or empty
            text = msgspec.json.format(msgspec.json.encode(content, enc_hook=_describe), indent=2).decode()
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            lines += ["", f"## {title}", "", f"{fence}json", text, fence]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Escape text for a table cell."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", printable(" ".join(text.splitlines())))
