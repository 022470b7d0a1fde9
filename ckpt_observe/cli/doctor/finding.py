"""What a check finds."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """One line of the report."""

    state: str
    subject: str
    detail: str
