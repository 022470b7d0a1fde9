"""Suggests a name for one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar candidate, or an empty string if none is similar.

    The dashes of options do not count: with them, `--since` is similar to `--json`.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    names = {candidate.lstrip("-"): candidate for candidate in candidates}
    matches = get_close_matches(word.lstrip("-"), names, n=1)
    return f"; did you mean {names[matches[0]]!r}?" if matches else ""
