"""A trial tries one kind of fault again and again; `Findings` are what it counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

DEFECTS = ("lost", "duplicated", "wrong", "leaked", "exceptions", "signals")
"""Columns that must be zero."""
MAX_NOTES = 20


class Findings(msgspec.Struct):
    """Counts of one round, or of many."""

    faults: int = 0
    """Kills, power failures, failed requests, or damaged files that were read."""
    operations: int = 0
    """Operations that have begun."""
    counted: int = 0
    """Operations that were dropped beyond a limit, or that the server refused, and that our counters report exactly."""
    lost: int = 0
    """Operations that should have been delivered, and were neither delivered nor counted as dropped."""
    duplicated: int = 0
    """Operations that were delivered with two different ids, or with two different ends. A repetition with the same ids is harmless."""
    wrong: int = 0
    """Operations with an outcome or phase that they did not have, that never began, or that are counted wrong; other wrong results."""
    leaked: int = 0
    """Secrets of the host program in a file, a request or a message."""
    exceptions: int = 0
    """Exceptions that reached the host program, internal errors, and errors of the rig."""
    signals: int = 0
    """Processes that died of a signal that the rig did not send, or that hung."""
    notes: list[str] = []
    """Descriptions of the first defects."""

    def add(self, other: Findings) -> None:
        for name in ("faults", "operations", "counted", *DEFECTS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notes = [*self.notes, *other.notes][:MAX_NOTES]

    def record(self, defect: str, count: int, note: object) -> None:
        """Count a defect, if there is any."""
        if count:
            setattr(self, defect, getattr(self, defect) + count)
            self.notes = [*self.notes, f"{defect}: {note}"][:MAX_NOTES]

    @property
    def defects(self) -> int:
        return sum(getattr(self, name) for name in DEFECTS)

    @property
    def is_detection(self) -> bool:
        """Whether a control has found the defect that was made on purpose. An error of the rig is none: the round has counted nothing."""
        return self.defects > 0 and self.faults + self.operations > 0


class Trial(NamedTuple):
    """One kind of fault. `run` and `control` take a source of randomness and a directory, and take a few seconds."""

    group: str
    name: str
    unit: str
    """The count that has a target: `faults` or `operations`."""
    target: int
    """For a run of one hour."""
    run: Callable[[random.Random, Path], Findings]
    control: Callable[[random.Random, Path], Findings]
    """Runs the same with a defect on purpose. If it finds no defect, the rig is broken."""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"
