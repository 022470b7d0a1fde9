"""Secrets that a rig plants in a host program, and the search for them in everything that leaves it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from tests.support.secret_examples import EXAMPLES, HEX

FORMS = [form for forms, _ in EXAMPLES.values() for form in forms if form.alphabet != HEX]
"""Without hexadecimal secrets: eight of their characters may occur in a span id by chance."""


class Canaries(NamedTuple):
    """Texts with a secret each, and parts of these secrets that must not be anywhere."""

    texts: tuple[str, ...]
    parts: tuple[bytes, ...]

    def leaks(self, data: bytes) -> int:
        """Return how many of the parts are in the data."""
        return sum(part in data for part in self.parts)

    def leaks_in(self, directory: Path) -> int:
        """Return how many of the parts are in the files below a directory."""
        return sum(self.leaks(_read(path)) for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def draw(rng: random.Random, count: int = 6) -> Canaries:
    """Return new secrets of some of the known forms."""
    drawn = [form.fill(rng) for form in rng.sample(FORMS, count)]
    return Canaries(tuple(text for text, _ in drawn), tuple(part.encode() for _, parts in drawn for part in parts))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # delivered and removed meanwhile
        return b""
