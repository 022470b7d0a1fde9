"""Starting a real server on loopback, waiting until it is ready, and ending it."""

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

_candidates = itertools.cycle(random.sample(range(20000, 32768), 12768))


def program(name):
    """Where `.ci/services` put it. A version that the system has is another one, and is not used."""
    root = os.environ.get("CKPT_OBSERVE_SERVICES") or os.path.expanduser("~/.cache/ckpt_observe/services")
    found = shutil.which(name, path=os.path.join(root, "bin"))
    if found is None:
        pytest.skip(f"{name} is not installed: run .ci/services")
    return found


def free_port():
    """A port nobody has, each time another one. Below what the kernel gives to clients (32768 on), or a client that tries again
    takes the port of the server that is away, and the server cannot come back."""
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
    """Whether it says 200 there."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def eventually(look, wanted, seconds=90):
    """What `look` finds, once it is something; a failure that says what was waited for, if that never comes. A long deadline costs nothing
    where all is well, and a loaded machine may need half a minute to start a server."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"still not after {seconds} s: {wanted}")
        time.sleep(0.05)
    return found


@contextmanager
def running(arguments, ready, stop=signal.SIGTERM, **options):
    """The process, from when `ready()` is true until the block ends; what it said, if it ended before that."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, **options)

        def ready_or_ended():
            if process.poll() is not None:
                log.seek(0)
                pytest.fail(f"{arguments[0]} ended with {process.returncode}:\n{log.read().decode(errors='replace')[-4000:]}")
            return ready()

        try:
            eventually(ready_or_ended, f"{arguments[0]} is ready")
            yield process
        finally:
            process.send_signal(stop)
            process.wait(90)
