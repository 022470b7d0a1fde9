"""Phases that sum up many calls: a serializer that is called once per key, or a database that is asked several times.

One span per call would hide the rest of the trace, and a history of 2,000 checkpoints would not fit into its record. All calls of one kind
within an operation are one phase: it starts with the first call, and its duration and bytes are the totals. While a call runs, the phase
has no end mark, so a process that dies then is reported in that phase.
"""

from __future__ import annotations

import time
from typing import Any, Final

from ckpt_observe.record.operation import Operation, current_position
from ckpt_observe.record.phase import failure_attributes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.events import MARKED_PHASES, PHASE_CODES

_monotonic: Final = time.perf_counter_ns


class PhaseSum:
    """All calls of one kind within one operation. Times are from the monotonic clock.

    A running call is current in the context of its caller: set `current_position` to `position` while it runs.
    """

    __slots__ = ("_error", "_parent", "_start", "busy", "bytes_in", "bytes_out", "calls", "name", "number", "operation", "position")

    def __init__(self, operation: Operation, name: str) -> None:
        position = current_position.get()
        self.operation, self.name = operation, name
        self._parent = position[1] if position is not None and position[0] is operation else 0
        self.number = number = next(operation.phase_numbers)
        self.position = (operation, number, None)
        self._start = self.busy = self.calls = 0
        self.bytes_in = self.bytes_out = 0
        self._error: BaseException | None = None

    def begin(self, start: int) -> None:
        """Start a call."""
        operation, number = self.operation, self.number
        is_first = not self._start
        if is_first:
            self._start = start
        if number <= MARKED_PHASES and operation.open_page:  # else another operation may have the page by now
            if is_first:
                operation.page.marks[2 * number] = (start - operation.start) << 12 | self._parent << 8 | PHASE_CODES[self.name]
            else:
                operation.page.marks[2 * number + 1] = 0

    def end(self, start: int, end: int, error: BaseException | None = None) -> None:
        """End a call, with the exception that ended it, if any."""
        operation, number = self.operation, self.number
        self.busy += end - start
        self.calls += 1
        if error is not None:
            operation.add_phase_failure(self.name, error)
            if operation.open_page:
                self._error = error
        if number <= MARKED_PHASES and operation.open_page:
            operation.page.marks[2 * number + 1] = (self._start + self.busy - operation.start) << 12 | 1

    def record(self) -> tuple[Any, ...]:
        """Return the phase as a row of the operation's `end` line."""
        if not self.calls:  # its first call is still running
            self.busy = _monotonic() - self._start
        attributes: Any = (self.bytes_in or None, self.bytes_out or None)
        error = self._error
        self.forget_error()
        if self.calls > 1 or error is not None:
            attributes = {names.PHASE_BYTES_IN: attributes[0], names.PHASE_BYTES_OUT: attributes[1], names.PHASE_CALLS: self.calls}
        if error is not None:
            attributes.update(failure_attributes(self.operation, self.name, error))
        return self.name, self.number, self._parent, self._start, self._start + self.busy, attributes

    def forget_error(self) -> None:
        """Forget the exception. It refers to frames of the host program, and those refer to the phase: the cycle would keep them alive."""
        self._error = None
