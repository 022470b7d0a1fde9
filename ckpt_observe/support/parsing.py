"""Parses the values of settings. Every function raises ConfigError, with the name of the variable, for a value that it cannot use.

Nothing else may be raised: most values come from the environment, and are read when the host program imports us.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from ckpt_observe.errors import ConfigError
from ckpt_observe.support.host_exceptions import raise_host_exception

DEFAULT: Final = "default"
NONE: Final = "none"
"""Words that select the default, or nothing."""
MAX_NUMBER: Final = (1 << 43) - 1
"""The largest number that a setting may have. As MiB, it is the largest size of a file."""
_MAX_QUOTE: Final = 80
"""Characters of a value that a message quotes."""
_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


def quote(value: object) -> str:
    """Return a value in quotation marks, for a message. A long one is cut."""
    text = str(value)
    return f"'{text}'" if len(text) <= _MAX_QUOTE else f"'{text[:_MAX_QUOTE]}…'"


def parse_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a comma-separated list, each once. Never raises."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def parse_choice(variable: str, value: str, choices: Sequence[str]) -> str:
    """Return the value, which must be one of the choices."""
    if value not in choices:
        from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

        similar = get_close_matches(value, choices, 1)
        hint = f"did you mean {quote(similar[0])}? Use" if similar else "use"
        raise ConfigError(f"{variable}: {quote(value)} is not valid; {hint} one of: {', '.join(choices)}")
    return value


def parse_selection(variable: str, value: str | Sequence[str], available: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a value such as `default,+prometheus,-local` selects.

    A list of plain names selects just these. `+` adds to the selection so far and `-` removes from it; the selection starts with the
    default if the first name has a sign. `none` selects nothing.
    """
    tokens = parse_names(value)
    if tokens == (NONE,):
        return ()
    selection = dict.fromkeys(default if not tokens or tokens[0][0] in "+-" else ())
    for token in tokens:
        sign, name = (token[0], token[1:]) if token[0] in "+-" else ("+", token)
        parse_choice(variable, name, (*available, DEFAULT, NONE))
        if name == NONE:
            raise ConfigError(f"{variable}: '{NONE}' cannot be combined with other names ({', '.join(tokens)})")
        for each in default if name == DEFAULT else (name,):
            if sign == "+":
                selection[each] = None
            else:
                selection.pop(each, None)
    return tuple(selection)


def extends_default(value: str | Sequence[str]) -> bool:
    """Return whether a value for `parse_selection` selects the default, more than it, or the rest of it."""
    tokens = parse_names(value)
    return not tokens or tokens[0][0] in "+-" or DEFAULT in tokens


def parse_flag(variable: str, value: Any) -> bool:
    """Return a flag, which may be written as true/false, yes/no, on/off or 1/0."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{variable}: {quote(value)} is neither true nor false; use true or false")
    return word in _TRUE


def parse_number(variable: str, value: Any, meaning: str, smallest: int = 1, largest: int = MAX_NUMBER) -> int:
    """Return a whole number from `smallest` to `largest`. `meaning` completes the message "the value is not ..."."""
    text = str(value)
    # Python refuses to convert more than 4,300 digits, and `isdecimal` is true for the digits of all scripts.
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_NUMBER)) and smallest <= int(text) <= largest):
        raise ConfigError(f"{variable}: {quote(text)} is not {meaning}")
    return int(text)


def parse_path(variable: str, value: str | os.PathLike[str]) -> Path:
    """Return an absolute path. `~` and `~user` are home directories."""
    try:
        path = Path(value).expanduser().absolute()
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{variable}: {quote(value)} is not valid UTF-8; use another path") from None
    except (RuntimeError, KeyError) as caught:
        raise_host_exception(caught)
        raise ConfigError(f"{variable}: {quote(value)} names a home directory that does not exist; use an absolute path") from None
    except (OSError, ValueError) as error:
        raise_host_exception(error)
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{variable}: {quote(value)} cannot be made absolute ({reason}); use an absolute path") from None
    return path


def split_url(url: str) -> SplitResult | None:
    """Return the parts of an HTTP URL, or None if it is not one. Its port is a number, if there is one."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # such as a bracket that is not closed, or a port above 65535
        return None
    return parts if is_usable else None
