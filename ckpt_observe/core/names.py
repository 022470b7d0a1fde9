"""Names of tasks and checkpoints: which are accepted, and how they become file names.

Names come from users and from the network, so they are hostile until shown otherwise. The encoding is injective and its
result never holds a separator, a leading dot or a control character.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from ckpt_observe.errors import InvalidNameError

MAX_CHARACTERS = 256
MAX_FILE_NAME = 200
"""File systems take 255 bytes; the rest is room for suffixes."""

_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_PLAIN = re.compile("[A-Za-z0-9_-][A-Za-z0-9_.-]*").fullmatch
_HASHED = re.compile("[A-Za-z0-9_%-][A-Za-z0-9_.%-]{0,63}~[0-9a-f]{64}").fullmatch
"""A name that was cut and hashed."""


def checked(name: object, what: str) -> str:
    """The name itself, or InvalidNameError that says why it cannot be one."""
    if not isinstance(name, str):
        raise InvalidNameError(f"the {what} must be a string, not {type(name).__name__}")
    if name.isascii() and name.isprintable() and 0 < len(name) <= MAX_CHARACTERS:
        return name
    if not name or len(name) > MAX_CHARACTERS:
        raise InvalidNameError(f"the {what} must have 1 to {MAX_CHARACTERS} characters, not {len(name)}")
    if _CONTROL.search(name):
        raise InvalidNameError(f"the {what} {name!r:.80} holds a control character or half of a surrogate pair")
    return name


@lru_cache(maxsize=1024)
def to_file_name(name: str) -> str:
    """A file name that no other name has: percent-encoded, or cut and hashed when that is too long."""
    if len(name) <= MAX_FILE_NAME and _PLAIN(name):
        return name
    encoded = quote(name, safe="").replace("~", "%7E")
    if encoded[0] == ".":
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= MAX_FILE_NAME:
        return encoded
    return f"{encoded[:64]}~{hashlib.sha256(name.encode()).hexdigest()}"  # no short encoding holds a tilde


def from_file_name(file_name: str) -> str | None:
    """The name again, or None where only its hash was kept."""
    return None if "~" in file_name else unquote(file_name)


def known_as(file_name: str) -> str:
    """The id again, or what stands for it: of a checkpoint that is damaged nothing else tells it."""
    return from_file_name(file_name) or file_name


def id_to_file_name(id: str) -> str:
    """The file name of an id, or of what stands for it; within one task alone, so that no other's is reached by it."""
    return id if "~" in id and _HASHED(id) else to_file_name(id)


def checked_new(id: object) -> str:
    """An id to save under: any but one that would stand for another."""
    if _HASHED(name := checked(id, "checkpoint id")):
        raise InvalidNameError(f"the checkpoint id {name!r} is what stands for a longer one whose header is damaged: choose another")
    return name
