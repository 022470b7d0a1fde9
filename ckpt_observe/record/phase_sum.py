"""Phases that sum up many calls: a serializer that is called once per key, or a database that is asked several times.

One span per call would hide the rest of the trace, and a history of 2,000 checkpoints would not fit into its record. All calls of one kind
within an operation are one phase: it starts with the first call, and its duration and bytes are the totals. While a call runs, the phase
has no end mark, so a process that dies then is reported in that phase.
"""

from __future__ import annotations

import time
from typing import Any, Final, TypeAlias

import msgspec

from ckpt_observe.record.operation import Operation
from ckpt_observe.record.phase import failure_attributes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.events import MARKED_PHASES, PHASE_CODES

_monotonic: Final = time.perf_counter_ns
PhaseRow: TypeAlias = tuple[str, int, int, int, int, Any]
"""A phase in the `end` line of its operation: name, number, number of its parent, start, end, and sizes or attributes."""


class PhaseSum(msgspec.Struct):
    """All calls of one kind within one operation. Times are nanoseconds since the operation began.

    It does not refer to its operation, which refers to it: a cycle would keep both alive until the garbage collector finds them.
    Rows that run often have the steps of `begin` and `end` written out, because calling them would cost more than they do.
    """

    name: str
    number: int
    parent: int
    start: int
    stop: int
    """When the phase would have ended if its calls had followed each other without a gap."""
    end_mark: int = 0
    """The word of the page that is 0 while a call runs, and else says when the phase ended; 0: there is no such word."""
    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    error: BaseException | None = None

    @property
    def busy(self) -> int:
        """The nanoseconds that all calls took."""
        return self.stop - self.start

    def begin(self, operation: Operation) -> int:
        """Start a call. Return when."""
        if self.calls and self.end_mark and operation.open_page:
            operation.page.marks[self.end_mark] = 0
        return _monotonic() - operation.start

    def end(self, operation: Operation, start: int, error: BaseException | None = None) -> None:
        """End a call, with the exception that ended it, if any."""
        self.stop = stop = self.stop + _monotonic() - operation.start - start
        self.calls += 1
        if error is not None:
            self.fail(operation, error)
        if self.end_mark and operation.open_page:
            operation.page.marks[self.end_mark] = stop << 12 | 1

    def fail(self, operation: Operation, error: BaseException) -> None:
        """Remember the exception that ended a call."""
        operation.add_phase_failure(self.name, error)
        if operation.open_page:
            self.error = error

    def record(self, operation: Operation) -> PhaseRow:
        """Return the phase as a row of the operation's `end` line."""
        if not self.calls:  # its first call is still running
            self.stop = _monotonic() - operation.start
        attributes: Any = self.bytes_in or None, self.bytes_out or None
        error = self.error
        if self.calls > 1 or error is not None:
            attributes = {names.PHASE_BYTES_IN: attributes[0], names.PHASE_BYTES_OUT: attributes[1], names.PHASE_CALLS: self.calls}
        if error is not None:
            self.error = None  # it refers to frames of the host program, and those refer to us: the cycle would keep them alive
            attributes.update(failure_attributes(operation, self.name, error))
        return self.name, self.number, self.parent, self.start, self.stop, attributes


def start_phase(operation: Operation, name: str, parent: int, start: int) -> PhaseSum:
    """Start a phase of the operation with its first call, within the phase with the number `parent`."""
    number = next(operation.phase_numbers)
    if number > MARKED_PHASES or not operation.open_page:  # it has ended, and another operation may have the page by now
        return PhaseSum(name, number, parent, start, start)
    begin_mark = 2 * number
    operation.page.marks[begin_mark] = start << 12 | parent << 8 | PHASE_CODES[name]
    return PhaseSum(name, number, parent, start, start, begin_mark + 1)


def continue_phase(row: PhaseRow) -> PhaseSum:
    """Return the sum of a phase that has ended, for further calls."""
    name, number, parent, start, stop, _ = row
    return PhaseSum(name, number, parent, start, stop, 2 * number + 1 if number <= MARKED_PHASES else 0, 1)
