"""What is known about one kind of operation of one task: last success, consecutive failures, expected interval, sizes.

Alerts on rare events need these values, and they must survive restarts. Attempts do not always arrive in the order in which they
ended: there are several processes, and records of dead ones arrive late. A failure that ended before the last success therefore does
not count as one after it, and no timestamp moves backwards.
"""

from __future__ import annotations

from typing import Final

import msgspec

MIN_GAPS: Final = 3
"""Number of gaps between saves that must have been measured before a learned interval is reported."""
FAILURE_OUTCOMES: Final = ("error", "interrupted")


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One finished operation. Times are in Unix seconds."""

    start: float
    end: float
    outcome: str
    verified: bool = False
    """The checkpoint was read back and checked, and neither damage nor an altered key was found."""
    detected: float = 0.0
    """When the outcome became known: the end, or for an operation whose process died, when its records were found."""
    error_classes: tuple[str, ...] = ()
    """The error class of the operation if it failed, and `integrity` if it found damaged checkpoints."""
    altered: bool = False
    """The state read back differs from the state saved."""
    run_id: str = ""
    """The id of the task run. Intervals are learned within one run, so that the night between two runs does not count."""
    save_id: str = ""
    """Step of a save, or the id of the checkpoint if there is no step. Ranks (processes) that save the same step count as one save."""
    interval: float = 0.0
    """Seconds between two saves, as declared by the program, or 0."""
    sizes: dict[str, float] = {}
    peak_memory: float = 0.0
    key_sizes: dict[str, float] = {}
    """Sizes of the largest top-level keys of the state, in bytes."""
    location: str = ""


class OperationStatus(msgspec.Struct, array_like=True):
    """Status of one kind of operation of one task. Zero means never or unknown.

    Stored as an array: the order of the fields is part of the file format.
    """

    first_attempt: float = 0.0
    last_attempt: float = 0.0
    last_success: float = 0.0
    last_failure: float = 0.0
    last_verified: float = 0.0
    consecutive_failures: int = 0
    duration: float = 0.0
    sizes: dict[str, float] = {}
    peak_memory: float = 0.0
    declared_interval: float = 0.0
    learned_interval: float = 0.0
    gap_count: int = 0
    save_end: float = 0.0
    """When the last successful save ended; if several ranks saved it, when the first of them ended. Gaps are measured from here."""
    run_id: str = ""
    save_id: str = ""
    key_sizes: dict[str, float] = {}
    location: str = ""
    """Location of the checkpoint store in the attempt that started last."""
    last_detected: dict[str, float] = {}
    """When a failure of each error class last became known. An alert must not miss a death that is discovered a day later."""
    last_altered: float = 0.0

    @property
    def interval(self) -> float:
        """The expected seconds between two saves, declared or else learned; 0 if unknown."""
        return self.declared_interval or (self.learned_interval if self.gap_count >= MIN_GAPS else 0.0)

    def apply(self, attempt: Attempt) -> None:
        """Update the status with one attempt."""
        self.first_attempt = min(self.first_attempt or attempt.start, attempt.start)
        if attempt.start >= self.last_attempt:
            self.last_attempt = attempt.start
            self.duration = attempt.end - attempt.start
            self.peak_memory = attempt.peak_memory or self.peak_memory
            self.declared_interval = attempt.interval or self.declared_interval
            self.location = attempt.location
        for error_class in attempt.error_classes:
            self.last_detected[error_class] = max(attempt.detected, self.last_detected.get(error_class, 0.0))
        self.last_altered = max(self.last_altered, attempt.detected) if attempt.altered else self.last_altered
        if attempt.outcome in FAILURE_OUTCOMES:
            self.last_failure = max(self.last_failure, attempt.end)
            self.consecutive_failures += attempt.end > self.last_success
        elif attempt.outcome == "ok":
            self._apply_success(attempt)

    def _apply_success(self, attempt: Attempt) -> None:
        if attempt.end >= self.last_failure:
            self.consecutive_failures = 0
        if attempt.verified:
            self.last_verified = max(self.last_verified, attempt.end)
        if attempt.end > self.last_success:
            self.sizes, self.key_sizes = attempt.sizes or self.sizes, attempt.key_sizes or self.key_sizes
            self._learn_interval(attempt)
            self.last_success = attempt.end

    def _learn_interval(self, attempt: Attempt) -> None:
        """Average over about the last four gaps between saves of a run.

        One gap at most doubles the interval, so that an outage does not silence the next alert.
        """
        if self.save_end and (attempt.start < self.save_end or (attempt.save_id and attempt.save_id == self.save_id)):
            return  # another part of the same save
        if self.save_end and attempt.run_id == self.run_id:
            gap, average = attempt.end - self.save_end, self.learned_interval
            self.learned_interval = min(2 * average, average + (gap - average) / 4) if self.gap_count else gap
            self.gap_count += 1
        self.save_end, self.run_id, self.save_id = attempt.end, attempt.run_id, attempt.save_id
