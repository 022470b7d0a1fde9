"""How the operations of one kind stand for one task: what alerts on rare events need, and what must survive restarts.

Attempts are applied in the order in which they arrive, which is not always the order in which they ended: several processes, and
dead ones whose records come late. So a failure before the last success is not counted as one after it, and nothing moves backwards.
"""

from __future__ import annotations

from typing import Final

import msgspec

GAPS: Final = 3
"""Gaps between saves before a learnt interval is told to anybody."""
FAILED: Final = ("error", "interrupted")


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One operation that ended. Times are Unix seconds."""

    start: float
    end: float
    outcome: str
    verified: bool = False
    told: float = 0.0
    """When it became known: its end; of a process that died, when somebody found what it left."""
    failures: tuple[str, ...] = ()
    """Error classes: how it failed, what it found."""
    altered: bool = False
    """The state came back other than it was saved."""
    run: str = ""
    """The task's id: an interval is learnt within one run, not over the night between two."""
    mark: str = ""
    """The step or id of the checkpoint: ranks that save one step together make one save."""
    interval: float = 0.0
    sizes: dict[str, float] = {}
    memory: float = 0.0
    keys: dict[str, float] = {}
    """Size of each of the largest top-level keys."""
    location: str = ""


class Progress(msgspec.Struct, array_like=True):
    """Zero means never, or not known."""

    first_attempt: float = 0.0
    last_attempt: float = 0.0
    last_success: float = 0.0
    last_failure: float = 0.0
    last_verified: float = 0.0
    failures: int = 0
    duration: float = 0.0
    sizes: dict[str, float] = {}
    memory: float = 0.0
    declared: float = 0.0
    learnt: float = 0.0
    gaps: int = 0
    saved: float = 0.0
    """When the first part of the newest save ended: gaps are measured from there."""
    run: str = ""
    mark: str = ""
    keys: dict[str, float] = {}
    location: str = ""
    """Where the newest attempt went."""
    told: dict[str, float] = {}
    """When each error class was last told of. An alert on it must not miss a death that is found a day later."""
    altered: float = 0.0

    @property
    def interval(self) -> float:
        return self.declared or (self.learnt if self.gaps >= GAPS else 0.0)

    def apply(self, attempt: Attempt) -> None:
        self.first_attempt = min(self.first_attempt or attempt.start, attempt.start)
        if attempt.start >= self.last_attempt:
            self.last_attempt = attempt.start
            self.duration = attempt.end - attempt.start
            self.memory = attempt.memory or self.memory
            self.declared = attempt.interval or self.declared
            self.location = attempt.location
        self.told.update({each: max(attempt.told, self.told.get(each, 0.0)) for each in attempt.failures})
        self.altered = max(self.altered, attempt.told) if attempt.altered else self.altered
        if attempt.outcome in FAILED:
            self.last_failure = max(self.last_failure, attempt.end)
            self.failures += attempt.end > self.last_success
        elif attempt.outcome == "ok":
            self._succeeded(attempt)

    def _succeeded(self, attempt: Attempt) -> None:
        if attempt.end >= self.last_failure:
            self.failures = 0
        if attempt.verified:
            self.last_verified = max(self.last_verified, attempt.end)
        if attempt.end > self.last_success:
            self.sizes, self.keys = attempt.sizes or self.sizes, attempt.keys or self.keys
            self._learn(attempt)
            self.last_success = attempt.end

    def _learn(self, attempt: Attempt) -> None:
        """A moving average over about four gaps that at most doubles at a time, so that one outage does not blind the alert after it."""
        if self.saved and (attempt.start < self.saved or (attempt.mark and attempt.mark == self.mark)):
            return  # another part of the same save
        if self.saved and attempt.run == self.run:
            gap = attempt.end - self.saved
            self.learnt = min(2 * self.learnt, self.learnt + (gap - self.learnt) / 4) if self.gaps else gap
            self.gaps += 1
        self.saved, self.run, self.mark = attempt.end, attempt.run, attempt.mark
