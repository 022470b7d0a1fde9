"""A checkpoint as text for people: Markdown, YAML or JSON. For reading, not for loading back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError, SerializationError

Style = Literal["markdown", "yaml", "json"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*[A-Za-z0-9_]|[A-Za-z_]").fullmatch
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""What YAML reads as something else than text."""

_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON takes as it is, and YAML as the end of a line or not at all."""


def extract(info: CheckpointInfo, state: Any, style: Style) -> str:
    """Summary and state of a checkpoint as text, ending with a line break."""
    if style not in get_args(Style):
        raise ConfigError(f"unknown style {style!r:.80}: known are {', '.join(get_args(Style))}")
    try:
        return _text(info, _plain(state), style)
    except Exception as error:  # too deep, not to be encoded, or whatever showing an object of the program raises
        raise SerializationError(f"this state cannot be shown as {style}: {error}") from error


def _text(info: CheckpointInfo, state: Any, style: Style) -> str:
    if style == "markdown":
        return _markdown(info, state)
    whole = {"summary": msgspec.to_builtins(info), "state": state}
    if style == "yaml":
        return "\n".join(_yaml(whole, 0)) + "\n"
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def _plain(state: Any) -> Any:
    """What JSON has."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in zip(_names(state), state.values(), strict=True)}
    if isinstance(state, list | tuple | set | frozenset):
        return [_plain(item) for item in state]
    return msgspec.to_builtins(state, str_keys=True, enc_hook=_described)


def _names(state: Mapping[Any, Any]) -> Iterator[str]:
    """A key that is no text is shown as Python writes it; with its type where another is shown so, for else it would hide that one."""
    taken = {key for key in state if isinstance(key, str)}
    for key in state:
        if isinstance(key, str):
            yield key
            continue
        name = str(key)
        while name in taken:
            name = f"{name} ({type(key).__name__})"
        taken.add(name)
        yield name


def _described(value: Any) -> str:
    """What has no plain form: an array by its shape, anything else (a number of numpy, a table) as Python shows it, cut short."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{type(value).__name__} {dtype} {list(shape)}" if shape and dtype is not None else repr(value)[:200]


def _markdown(info: CheckpointInfo, state: Any) -> str:
    facts = {
        "task": info.task,
        "step": info.step,
        "status": info.status,
        "created": info.created.isoformat(),
        "size": f"{info.serialized_size} bytes, {info.stored_size} stored ({info.format}, {info.codec})",
        "parent": info.parent,
        "tags": ", ".join(info.tags) or None,
    }
    lines = [f"# Checkpoint {_cell(info.id)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(str(value))} |" for name, value in facts.items() if value is not None]
    if info.keys:
        lines += ["", "## Keys", "", "| key | type | bytes |", "|---|---|---|"]
        lines += [f"| {_cell(name)} | {_cell(key.type)} | {key.size} |" for name, key in info.keys.items()]
    for title, content in (("Metadata", info.metadata), ("State", state)):
        if content or title == "State":  # which may be 0, or empty
            text = msgspec.json.format(msgspec.json.encode(content, enc_hook=_described), indent=2).decode()
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            lines += ["", f"## {title}", "", f"{fence}json", text, fence]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that cannot leave its table cell or become markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.splitlines()))


def _yaml(value: Any, depth: int) -> list[str]:
    """The lines of a value, indented."""
    margin = "  " * depth
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(f"{margin}{_scalar(key)}:", item, depth)]
    if isinstance(value, list) and value:
        return [line for item in value for line in _entry(f"{margin}-", item, depth)]
    return [margin + _scalar(value)]


def _entry(start: str, item: Any, depth: int) -> list[str]:
    if isinstance(item, dict | list) and item:
        return [start, *_yaml(item, depth + 1)]
    return [f"{start} {_scalar(item)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str) and _PLAIN(value) and value.lower() not in _WORDS:
        return value
    text = msgspec.json.encode(value).decode()  # quoted text, numbers and empty containers are the same in YAML
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    return f"{digits if '.' in digits else digits + '.0'}e{exponent if exponent[0] in '+-' else '+' + exponent}"  # YAML 1.1 wants both
