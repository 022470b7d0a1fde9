"""Where a moment is in a picture. Long times in which nothing happens are folded: checkpoints are short, and the time between is long.

A run that saves for one second every half hour would otherwise be a row of lines too thin to see.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

FOLD_FACTOR: Final = 0.25
"""A gap is folded if it is longer than this share of the time in which something happens."""
_MAX_FOLDED: Final = 0.5
"""Share of the width that folded gaps may take altogether."""


class Piece(NamedTuple):
    """A part of the time axis: times in Unix nanoseconds, and places in the picture."""

    start: int
    end: int
    x: float
    width: float
    is_folded: bool

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


class TimeScale:
    """Maps moments to places from 0 to `width`. A folded gap is as wide as `fold_width`, or narrower if there are many."""

    def __init__(self, intervals: Iterable[tuple[int, int]], width: float, fold_width: float) -> None:
        parts = _split(_merge(intervals))
        folds = sum(is_folded for _, _, is_folded in parts)
        fold_width = min(fold_width, width * _MAX_FOLDED / folds) if folds else 0.0
        shown = sum(end - start for start, end, is_folded in parts if not is_folded)
        per_nano = (width - folds * fold_width) / max(shown, 1)
        self.pieces: list[Piece] = []
        x = 0.0
        for start, end, is_folded in parts:
            piece_width = fold_width if is_folded else (end - start) * per_nano
            self.pieces.append(Piece(start, end, x, piece_width, is_folded))
            x += piece_width
        self._starts = [piece.start for piece in self.pieces]

    @property
    def folds(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.is_folded]

    def position(self, unix_nano: int) -> float:
        """Return the place of a moment. Moments outside the axis are at its ends."""
        if not self.pieces:
            return 0.0
        piece = self.pieces[max(bisect_right(self._starts, unix_nano) - 1, 0)]
        share = (unix_nano - piece.start) / max(piece.end - piece.start, 1)
        return piece.x + piece.width * min(max(share, 0.0), 1.0)


def _merge(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the times in which something happens, without overlaps, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, max(start, end)))
    return merged


def _split(busy: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """Return the axis as parts: start, end, and whether the part is a folded gap."""
    limit = FOLD_FACTOR * max(sum(end - start for start, end in busy), 1)
    parts: list[tuple[int, int, bool]] = []
    for start, end in busy:
        if parts and start - parts[-1][1] > limit:
            parts.append((parts[-1][1], start, True))
            parts.append((start, end, False))
        elif parts:
            parts[-1] = parts[-1][0], end, False
        else:
            parts.append((start, end, False))
    return parts
