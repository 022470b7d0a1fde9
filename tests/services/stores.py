"""The servers that checkpoints are kept in, each in a directory of its own."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager

import processes
import pytest


@contextmanager
def redis(directory, *options):
    """A Redis that takes no snapshots."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: run .ci/services")
    port = processes.free_port()
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", *options]
    with processes.running(arguments, lambda: processes.listens(port)) as process:
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
        pytest.skip("PostgreSQL is not installed: run .ci/services")
    port, data = processes.free_port(), os.path.join(directory, "data")
    options = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    if options:
        shutil.chown(directory, "postgres")
    subprocess.run([initdb, "-D", data, "-U", "tester", "-A", "trust", "-N"], check=True, stdout=subprocess.DEVNULL, cwd="/", **options)
    arguments = [os.path.join(os.path.dirname(initdb), "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    url = f"postgresql://tester@127.0.0.1:{port}/postgres"
    with processes.running(arguments, lambda: _connects(url), signal.SIGINT, cwd="/", **options) as process:  # SIGTERM would wait for every client
        yield url, process


def _connects(url):
    psycopg = pytest.importorskip("psycopg")
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def s3(directory, monkeypatch):
    """An S3 server with one bucket, and the environment that leads to it."""
    port = processes.free_port()
    for name, value in {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    (directory / "checkpoints").mkdir()  # a directory is a bucket
    arguments = [processes.program("versitygw"), "--access", "testing", "--secret", "testing", "--port", f"127.0.0.1:{port}", "posix", str(directory)]
    with processes.running(arguments, lambda: processes.listens(port)) as process:
        yield "s3://checkpoints/prefix", process
