"""Servers that store checkpoints, each in its own directory."""

from __future__ import annotations

import base64
import glob
import hmac
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.parse
import urllib.request
from contextlib import contextmanager

import processes
import pytest

AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def redis(directory, *options):
    """Run Redis without snapshots."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: run .ci/services")
    port = processes.free_port()
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", *options]
    with processes.running(arguments, lambda: processes.listens(port)) as process:
        yield f"redis://127.0.0.1:{port}/0", process


@contextmanager
def postgres():
    """Run a new PostgreSQL server, as another user if we are root, because it refuses to run as root."""
    directory = tempfile.mkdtemp(prefix="ckpt-postgres-")  # other users cannot access pytest's directories
    try:
        with _postgres(directory) as started:
            yield started
    finally:
        shutil.rmtree(directory)


@contextmanager
def _postgres(directory):
    candidates = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    initdb = candidates[-1] if candidates else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed: run .ci/services")
    port, data = processes.free_port(), os.path.join(directory, "data")
    options = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    if options:
        shutil.chown(directory, "postgres")
    subprocess.run([initdb, "-D", data, "-U", "tester", "-A", "trust", "-N"], check=True, stdout=subprocess.DEVNULL, cwd="/", **options)
    arguments = [os.path.join(os.path.dirname(initdb), "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    url = f"postgresql://tester@127.0.0.1:{port}/postgres"
    with processes.running(
        arguments, lambda: _connects(url), signal.SIGINT, cwd="/", **options
    ) as process:  # SIGTERM would wait for every client
        yield url, process


def _connects(url):
    psycopg = pytest.importorskip("psycopg")
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def environment(scheme, port):
    """Return the environment variables for the object store on this port."""
    server = f"http://127.0.0.1:{port}"
    return {
        "s3": {
            "AWS_ENDPOINT": server,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
        },
        "az": {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": server},
    }[scheme]


@contextmanager
def s3(directory, port):
    """Run an S3 server with one bucket."""
    (directory / "checkpoints").mkdir()  # a directory is a bucket
    arguments = [
        processes.program("versitygw"),
        "--access",
        "testing",
        "--secret",
        "testing",
        "--port",
        f"127.0.0.1:{port}",
        "posix",
        str(directory),
    ]
    with processes.running(arguments, lambda: processes.listens(port)):
        yield "s3://checkpoints/prefix"


@contextmanager
def az(directory, port):
    """Run Azurite, Microsoft's emulator of Azure Blob Storage, with one container. The real service cannot run here."""
    arguments = [
        processes.program("azurite-blob"),
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
        "--disableTelemetry",
        "--blobKeepAliveTimeout",
        "120",
    ]
    with processes.running(arguments, lambda: processes.listens(port), cwd=directory):
        urllib.request.urlopen(urllib.request.Request(_container(port, "checkpoints"), method="PUT")).close()
        yield "az://checkpoints/prefix"


def _container(port, name):
    """Return a URL that may create a container, which obstore cannot, signed with the well-known key of Azurite."""
    permissions = {"sp": "c", "ss": "b", "srt": "c", "se": "2099-01-01T00:00:00Z", "sv": "2019-12-12"}
    signed = "devstoreaccount1\n{sp}\n{ss}\n{srt}\n\n{se}\n\n\n{sv}\n".format(**permissions)
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURITE_KEY), signed.encode(), "sha256")).decode()
    return f"http://127.0.0.1:{port}/devstoreaccount1/{name}?" + urllib.parse.urlencode(
        {**permissions, "restype": "container", "sig": signature}
    )
