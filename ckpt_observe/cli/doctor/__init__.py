"""The checks of `ckpt-observe doctor`. Each check is a function that takes the settings and yields findings."""

from __future__ import annotations

from typing import Final

import msgspec

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Diagnosis(msgspec.Struct, frozen=True):
    """A finding, which is a line of the report. `state` is `ok`, `note` (for information) or `problem`."""

    state: str
    subject: str
    detail: str
