"""Suggests a name for one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar candidate, or an empty string if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    matches = get_close_matches(word, candidates, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
