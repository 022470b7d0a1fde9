"""Phases that sum up many calls: a serializer that is called once per key, or a database that is asked several times.

One span per call would hide the rest of the trace, and a history of 2,000 checkpoints would not fit into its record. All calls of one kind
within an operation are one phase: it starts with the first call, and its duration and bytes are the totals. While a call runs, the phase
has no end mark, so a process that dies then is reported in that phase.
"""

from __future__ import annotations

import time
from typing import Any, Final

from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation, current_position
from ckpt_observe.record.phase import failure_attributes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.events import MARKED_PHASES, PHASE_CODES

_monotonic: Final = time.perf_counter_ns
_get_position, _set_position, _reset_position = current_position.get, current_position.set, current_position.reset


class PhaseSum:
    """All calls of one kind within one operation."""

    __slots__ = ("_code", "_error", "_parent", "_start", "busy", "bytes_in", "bytes_out", "calls", "name", "number", "operation")

    def __init__(self, operation: Operation, name: str) -> None:
        position = _get_position()
        self.operation, self.name = operation, name
        self._parent = position[1] if position is not None and position[0] is operation else 0
        self.number = next(operation.phase_numbers)
        self._code = PHASE_CODES[name]
        self._start = self.busy = self.calls = 0
        self.bytes_in = self.bytes_out = 0
        self._error: BaseException | None = None

    def begin(self) -> PhaseCall | None:
        """Start a call. Return None if the operation has ended, or if this is a call within a call of the same phase."""
        operation = self.operation
        position = _get_position()
        if not operation.open_page or (position is not None and position[0] is operation and position[1] == self.number):
            return None
        start = _monotonic()
        if not self._start:
            self._start = start
        if self.number <= MARKED_PHASES:
            marks = operation.page.marks
            marks[2 * self.number] = (self._start - operation.start) << 12 | self._parent << 8 | self._code
            marks[2 * self.number + 1] = 0
        return PhaseCall(self, start, _set_position((operation, self.number, None)))

    def record(self) -> tuple[Any, ...]:
        """Return the phase as a row of the operation's `end` line."""
        if not self.calls:  # its first call is still running
            self.busy = _monotonic() - self._start
        sizes: dict[str, Any] = {names.PHASE_BYTES_IN: self.bytes_in or None, names.PHASE_BYTES_OUT: self.bytes_out or None}
        if self.calls > 1:
            sizes[names.PHASE_CALLS] = self.calls
        if self._error is not None:
            sizes.update(failure_attributes(self.operation, self.name, self._error))
        return self.name, self.number, self._parent, self._start, self._start + self.busy, sizes


class PhaseCall:
    """One running call of a phase. It is current in the context of the caller until it ends."""

    __slots__ = ("_position_token", "_start", "total")

    def __init__(self, total: PhaseSum, start: int, position_token: Any) -> None:
        self.total, self._start, self._position_token = total, start, position_token

    def end(self, error: BaseException | None = None, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """End the call. Never raises."""
        try:
            total, operation = self.total, self.total.operation
            total.busy += _monotonic() - self._start
            total.calls += 1
            total.bytes_in += bytes_in
            total.bytes_out += bytes_out
            if error is not None:
                total._error = error
                if operation.failed_phase is None:
                    operation.failed_phase = total.name
            if operation.open_page and total.number <= MARKED_PHASES:
                operation.page.marks[2 * total.number + 1] = (total._start + total.busy - operation.start) << 12 | 1
            _reset_position(self._position_token)
        except ValueError:  # left in another context than it was entered in, such as a generator's
            _set_position(None)
        except Exception as fault:
            record_fault(fault)
