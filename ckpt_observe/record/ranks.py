"""Which part of a distributed program this process is, from the variables that its launcher has set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ckpt_observe.semconv.launchers import LAUNCHERS, RANK_ATTRIBUTES

_MAX_DIGITS: Final = 9


def read_ranks(environ: Mapping[str, str]) -> dict[str, int]:
    """Return rank, world size, local rank and node rank as attributes, as far as they are known. Empty if no launcher set them."""
    for launcher in LAUNCHERS:
        numbers = [_number(environ.get(variable, "")) for variable in launcher.variables]
        rank, world_size = numbers[:2]
        if rank is not None and world_size is not None and rank < world_size:
            return {name: number for name, number in zip(RANK_ATTRIBUTES, numbers, strict=True) if number is not None}
    return {}


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None
