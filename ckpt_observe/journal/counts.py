"""Counters of a process whose records another one delivers: the owner writes how they stand, whoever delivers takes what is new.

What is taken is noted before it is used: who dies in between loses an increase, and no counter ever counts one twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from ckpt_observe.support.files import replace_file

Counts: TypeAlias = dict[tuple[str, tuple[str, ...]], float]
"""By metric and label values."""

_STAND: Final = "counts.json"
_TAKEN: Final = "counts-taken.json"
_decode = msgspec.json.Decoder(list[tuple[str, tuple[str, ...], float]]).decode


def save(directory: str, counts: Mapping[tuple[str, tuple[str, ...]], float]) -> None:
    """By the owner. Nothing is written while nothing was counted. OSError: not now."""
    if any(counts.values()):
        _write(os.path.join(directory, _STAND), counts)


def take(directory: str) -> Counts:
    """By whoever delivers: what was added since it was last taken."""
    with suppress(OSError):
        stand, taken = _read(os.path.join(directory, _STAND)), _read(os.path.join(directory, _TAKEN))
        news = {key: value - taken.get(key, 0.0) for key, value in stand.items() if value > taken.get(key, 0.0)}
        if news:
            _write(os.path.join(directory, _TAKEN), stand)
        return news
    return {}


def _read(path: str) -> Counts:
    try:
        with open(path, "rb") as file:
            return {(metric, labels): value for metric, labels, value in _decode(file.read())}
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}


def _write(path: str, counts: Mapping[tuple[str, tuple[str, ...]], float]) -> None:
    replace_file(path, msgspec.json.encode([(metric, labels, value) for (metric, labels), value in counts.items()]), sync=False)
