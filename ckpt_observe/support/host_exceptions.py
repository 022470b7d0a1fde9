"""Exceptions that belong to the host program, although they pass through our code.

A signal handler of the host program may raise at any moment: a timeout made with `signal.alarm`, say. If our code is running at that
moment, the exception starts there, and an `except OSError` of ours would catch it: a `TimeoutError` is an `OSError`. It must reach the
host program. So every handler in code that may run in a thread of the host program calls `raise_host_exception` first
(`tests/test_host_exceptions.py` checks this).
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


def raise_host_exception(error: BaseException) -> None:
    """Raise the exception again if a signal handler of the host program raised it, or if it is a KeyboardInterrupt or the like."""
    if not isinstance(error, Exception) or _comes_from_signal_handler(error.__traceback__):
        raise error


class ignore_errors:  # noqa: N801 - used like `contextlib.suppress`
    """Ignore exceptions of these types in the block, except those of the host program: `with ignore_errors(OSError): ...`."""

    def __init__(self, *types: type[Exception]) -> None:
        self._types = types

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, self._types):
            return False
        raise_host_exception(error)
        return True


def keep_interrupt_status() -> None:
    """Let a program that Ctrl-C ended still end by SIGINT, after our code ran in its exit handlers.

    Python forgets an unhandled KeyboardInterrupt with the next `exec` of a string, which the definition of a named tuple or dataclass
    contains: the exit status would be 1 instead. An interactive interpreter (`sys.ps1`) has handled it.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        try:
            exec("raise KeyboardInterrupt")  # noqa: S102 - our own text
        except KeyboardInterrupt:
            pass


def _comes_from_signal_handler(trace: TracebackType | None) -> bool:
    if threading.current_thread() is not threading.main_thread():  # signal handlers run only there
        return False
    frames = []
    while trace is not None and trace.tb_next is not None:  # the first frame is ours: it caught the exception
        trace = trace.tb_next
        frames.append(trace.tb_frame)
    if any(map(_got_its_caller, frames)):
        return True
    if not frames:  # raised by the very statement, as most errors of system calls are
        return False
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame in frames)


def _got_its_caller(frame: FrameType) -> bool:
    """Return whether a function was called with the frame of its caller as an argument, as signal handlers are.

    Unlike the handlers that are installed now, this shows a handler that was installed for one signal only.
    """
    caller, code = frame.f_back, frame.f_code
    if caller is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(value is caller or (type(value) is tuple and any(each is caller for each in value)) for value in values)


_VARARGS = 0x04
"""The flag of a function with `*args`: `inspect.CO_VARARGS`, whose module takes 10 ms to import."""


def _code(handler: Any) -> Any:
    """Return the code object of a signal handler, or None if it has none."""
    if not callable(handler):  # SIG_DFL, SIG_IGN, or installed by C code
        return None
    handler = getattr(handler, "func", handler)  # functools.partial
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
