"""Pieces of generated Markdown pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def code(*names: str) -> str:
    """Return names as inline code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)
