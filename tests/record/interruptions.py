"""Interrupts code of ours at every point at which CPython runs signal handlers, one point per run."""

from __future__ import annotations

import dis
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

CALLS = {"CALL", "CALL_KW"}
CHECKING_INSTRUCTIONS = {*CALLS, "RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX"}
"""The interpreter runs signal handlers only after these instructions (CHECK_EVAL_BREAKER in CPython's ceval.c and bytecodes.c). After a
call of a Python function it does so at the beginning of that function (RESUME), not at its end."""


class TimeUpError(TimeoutError):
    """Raised by a signal handler of the host program. It is an OSError too, like the exception that most timeouts raise."""


def raise_time_up(signum: int, frame: FrameType | None) -> None:
    raise TimeUpError


@functools.cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Interruption:
    """Counts the points at which a signal handler can run, and sends the signal at point `number`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.place = ""
        """Where the signal arrived; empty if the code has fewer points."""
        self._count = 0
        self._previous: dict[FrameType, str] = {}
        """The instruction that each frame executed last."""

    def trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "call" and frame.f_back is not None and self._previous.get(frame.f_back) in CALLS:
            self._previous[frame.f_back] = "call of a Python function"
        elif event == "opcode":
            instruction = _instructions(frame.f_code)[frame.f_lasti]
            if instruction != "NOP":  # has no entry in the exception table, and the interpreter never stops before it
                previous, self._previous[frame] = self._previous.get(frame), instruction
                if previous in CHECKING_INSTRUCTIONS:
                    self._pass_point(frame)
        elif event in ("return", "exception"):  # after a call that raises, the interpreter goes to the handler at once
            self._previous.pop(frame, None)
        return self.trace

    def _pass_point(self, frame: FrameType) -> None:
        if frame.f_globals.get("__name__") != __name__:
            self._count += 1
            if self._count > self.number:
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                self._previous.clear()  # frames, which have references to pages
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)


@contextmanager
def handler(function: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, function)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@functools.cache
def _trace_once() -> None:
    """Trace the instructions of a function. Python 3.12 reports none in the first function of a process for which that is requested."""
    sys.settrace(Interruption(sys.maxsize).trace)
    handler(raise_time_up)
    sys.settrace(None)


def interrupt_everywhere(
    action: Callable[[], Any], step: int = 1, function: Callable[[int, FrameType | None], Any] = raise_time_up
) -> Iterator[tuple[str, bool]]:
    """Run the action again and again, interrupted at each point in turn. Yield the place, and whether the exception reached us.

    With a `step`, only every so many points are tried.
    """
    _trace_once()
    number = 0
    while True:
        interruption = Interruption(number)
        reached = False
        with handler(function):
            sys.settrace(interruption.trace)
            try:
                action()
            except TimeUpError:
                reached = True
            finally:
                sys.settrace(None)
        if not interruption.place:
            return
        yield interruption.place, reached
        number += step
