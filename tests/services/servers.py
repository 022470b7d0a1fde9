"""Real servers on loopback, each in a directory of its own, started and ended by the tests."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from importlib.util import find_spec

import pytest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_port(port, process, seconds=30):
    """Return once something listens there; fail with what the process said if it ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}: {process.args}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"nothing listens on {port} after {seconds} s: {process.args}")


@contextmanager
def running(arguments, port, stop=signal.SIGTERM, **options):
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        await_port(port, process)
        yield process
    finally:
        process.send_signal(stop)
        process.wait(30)


@contextmanager
def redis(directory, *options):
    """A Redis that syncs every write."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    port = free_port()
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", *options]
    with running(arguments, port) as process:
        yield f"redis://127.0.0.1:{port}/0", process


@contextmanager
def postgres():
    """A PostgreSQL of its own; run as another user where we are root, which it refuses."""
    directory = tempfile.mkdtemp(prefix="ckpt-postgres-")  # pytest's own directories are closed to other users
    try:
        with _postgres(directory) as started:
            yield started
    finally:
        shutil.rmtree(directory)


@contextmanager
def _postgres(directory):
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    initdb = found[-1] if found else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    port, data = free_port(), os.path.join(directory, "data")
    options = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    if options:
        shutil.chown(directory, "postgres")
    subprocess.run([initdb, "-D", data, "-U", "tester", "-A", "trust", "-N"], check=True, stdout=subprocess.DEVNULL, cwd="/", **options)
    arguments = [os.path.join(os.path.dirname(initdb), "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    with running(arguments, port, signal.SIGINT, cwd="/", **options) as process:  # SIGTERM would wait for every client
        await_ready(port)
        yield f"postgresql://tester@127.0.0.1:{port}/postgres", process


def await_ready(port):
    psycopg = pytest.importorskip("psycopg")
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(f"postgresql://tester@127.0.0.1:{port}/postgres").close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def s3(monkeypatch):
    """An S3 server with one bucket, and the environment that leads to it."""
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip("no S3 server is installed: pip install 'moto[server]'")
    port = free_port()
    for name, value in {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port) as process:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/checkpoints", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield "s3://checkpoints/prefix", process
