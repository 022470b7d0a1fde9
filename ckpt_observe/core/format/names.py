"""Names of tasks and checkpoints: validation, and encoding as file names.

Names may come from users or the network, so they are not trusted. Two names never share a file name, and a file name never contains a
separator, a leading dot or a control character.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import random
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from ckpt_observe.errors import InvalidNameError
from ckpt_observe.support import forks

MAX_CHARACTERS = 256
MAX_FILE_NAME = 200
"""Bytes. File systems allow 255; the rest is for suffixes."""

_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_PLAIN = re.compile("[A-Za-z0-9_-][A-Za-z0-9_.-]*").fullmatch
_HASHED = re.compile("[A-Za-z0-9_%-][A-Za-z0-9_.%-]{0,63}~[0-9a-f]{64}").fullmatch
"""Matches the file name of a name that was too long: its start and its hash."""
_random = random.Random()  # noqa: S311 - ids need not be secret, and a system call gives up the GIL, in a save before its first phase
forks.run_in_child(_random.seed)


def check_name(name: object, what: str) -> str:
    """Return the name, or raise InvalidNameError with the reason. `what` names it in the message, such as "task"."""
    if not isinstance(name, str):
        raise InvalidNameError(f"the {what} must be a string, not {type(name).__name__}")
    if name.isascii() and name.isprintable() and 0 < len(name) <= MAX_CHARACTERS:
        return name
    if not name or len(name) > MAX_CHARACTERS:
        raise InvalidNameError(f"the {what} must have 1 to {MAX_CHARACTERS} characters, not {len(name)}")
    if _CONTROL.search(name):
        raise InvalidNameError(f"the {what} {name!r:.80} contains a control character or an unpaired surrogate; remove it")
    return name


def check_new_id(id: object) -> str:
    """Return the id if a checkpoint may be saved under it. An id that looks like the hashed file name of another is refused."""
    if _HASHED(name := check_name(id, "checkpoint id")):
        raise InvalidNameError(f"the checkpoint id {name!r} is reserved: it looks like the shortened form of a longer id. Choose another")
    return name


def new_id(created: dt.datetime) -> str:
    """Return a new id: the time, by which ids sort, and a random part."""
    time = created.isoformat(timespec="microseconds")[:26].replace("-", "").replace(":", "")  # strftime takes ten times as long
    return f"{time}-{_random.getrandbits(32):08x}"


def time_of_id(id: str) -> dt.datetime | None:
    """Return the time in an id that `new_id` returned; None for other ids."""
    if id[22:23] != "-":
        return None
    try:
        return dt.datetime.fromisoformat(id[:22] + "+00:00")
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def to_file_name(name: str) -> str:
    """Return a unique file name for the name: percent-encoded, or its start and a hash if that is too long."""
    if len(name) <= MAX_FILE_NAME and _PLAIN(name):
        return name
    encoded = quote(name, safe="").replace("~", "%7E")
    if encoded[0] == ".":
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= MAX_FILE_NAME:
        return encoded
    return f"{encoded[:64]}~{hashlib.sha256(name.encode()).hexdigest()}"  # a percent-encoded name contains no tilde


def from_file_name(file_name: str) -> str | None:
    """Return the name; None if the name was too long, because then the file name only has its hash."""
    return None if "~" in file_name else unquote(file_name)


def id_to_file_name(id: str) -> str:
    """Return the file name of an id. A hashed file name is returned as it is, so that a damaged checkpoint can be addressed by it."""
    return id if "~" in id and _HASHED(id) else to_file_name(id)


def id_from_file_name(file_name: str) -> str:
    """Return the id, or the hashed file name in its place: if the header is damaged, nothing else identifies the checkpoint."""
    return from_file_name(file_name) or file_name
