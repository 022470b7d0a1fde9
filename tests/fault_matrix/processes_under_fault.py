"""Runs an action in a child process: as another user, or with faults at its system calls."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

NOBODY = 65534


def run_as_other_user(call: Callable[[], Any]) -> Any:
    """Call a function in a forked process of another user. Return its result."""
    return run_forked(lambda: (os.setgid(NOBODY), os.setuid(NOBODY), call())[-1])


def run_with_system_call_fault(call: Callable[[], Any], calls: str, fault: str, paths: Iterable[str] = ()) -> Any:
    """Call a function in a forked process. In it and each of its children, the first of these system calls gets the fault.

    If there are `paths`, only calls that use one of them count.
    """
    tracers: list[subprocess.Popen[str]] = []

    def attach(child: int) -> None:
        filters = ["-e", f"trace={calls}", *(argument for path in paths for argument in ("-P", path))]
        arguments = ["strace", "-f", "-o", os.devnull, "-p", str(child), *filters, "-e", f"inject={calls}:{fault}:when=1"]
        tracer = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        tracers.append(tracer)
        assert tracer.stderr is not None
        for line in tracer.stderr:
            if "attached" in line:
                break
        else:
            raise AssertionError("strace did not attach")

    try:
        return run_forked(call, attach)
    finally:
        for tracer in tracers:
            tracer.communicate(timeout=60)


def run_forked(call: Callable[[], Any], prepare: Callable[[int], None] = lambda child: None) -> Any:
    """Return the result of the call in a child, which starts when `prepare(pid)` has returned; None if the child was killed."""
    reader, writer = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            signal.sigwait({signal.SIGUSR1})
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pickle.dumps(call()))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        prepare(child)
    finally:
        os.kill(child, signal.SIGUSR1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None
