"""Starts real servers on loopback, waits until they are ready, and stops them."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

# SystemRandom ignores the seed of pytest-randomly, which is the same in all parallel test processes.
_candidates = itertools.cycle(random.SystemRandom().sample(range(20000, 32768), 12768))


def program(name):
    """Return the path of a program that `.ci/services` installed. Other versions on the system are not used."""
    root = os.environ.get("CKPT_TEST_SERVICES") or os.path.expanduser("~/.cache/ckpt_observe/services")
    path = shutil.which(name, path=os.path.join(root, "bin"))
    if path is None:
        pytest.skip(f"{name} is not installed: run .ci/services")
    return path


def free_port():
    """Return an unused port, a different one each time.

    Below 32768, where the kernel's ports for clients start: a client that retries could otherwise get the port of a stopped server.
    """
    while True:
        port = next(_candidates)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url):
    """Return whether the URL answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def eventually(check, condition, seconds=90):
    """Call `check` until its result is true and return the result. Fail the test after `seconds`, naming the condition.

    The long deadline costs nothing if all is well, and a loaded machine may need half a minute to start a server.
    """
    deadline = time.monotonic() + seconds
    while not (result := check()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {condition}")
        time.sleep(0.05)
    return result


@contextmanager
def running(arguments, ready, stop=signal.SIGTERM, seconds=90, **options):
    """Run a process during the block, which starts when `ready()` is true, within `seconds`. If it ends before, fail with its output.

    The process has a method `output()`, which returns what it has printed so far.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, **options)
        process.output = lambda: os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")

        def ready_or_ended():
            if process.poll() is not None:
                pytest.fail(f"{arguments[0]} ended with {process.returncode}:\n{process.output()[-4000:]}")
            return ready()

        try:
            eventually(ready_or_ended, f"{arguments[0]} is ready", seconds)
            yield process
        finally:
            process.send_signal(stop)
            process.wait(90)
