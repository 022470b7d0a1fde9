"""A container that is killed: its shared memory is gone, its volumes are not.

The container is a mount and IPC namespace, in which `/dev/shm` is a small tmpfs and the state directory a mount of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ckpt_observe.journal.pool import FIRST_PAGES
from tests.faults.oracle import adopt, delivered
from tests.faults.test_disk import needs_mounts

pytestmark = [pytest.mark.faults, needs_mounts]

PROGRAM = """
import os, sys
import ckpt_observe
from ckpt_observe import exporter_selection
from ckpt_observe.delivery import delivery
from tests.faults.worker import FileExporter

delivery.SYNC_INTERVAL = 1e9  # the copy of the pages on disk stays as old as it is
exporter_selection.EXPORTERS["local"] = lambda settings: FileExporter(settings.dir)
count, filler = int(sys.argv[1]), sys.argv[2]
watch = ckpt_observe.observe(exporters="local", dir=os.environ["CKPT_OBSERVE_DIR"])
with ckpt_observe.checkpoint("save", id="earlier"):
    pass
assert watch.flush(60)
if filler:
    with open("/dev/shm/filler", "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
running = [ckpt_observe.checkpoint("save", id=str(number)).__enter__() for number in range(count)]
print("running", flush=True)
sys.stdin.read()
"""


def kill_container(tmp_path, count, *, fill="", **environ):
    """Run the program in a container and kill it during `count` saves. Return how many of them are reported afterwards."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    mounts = f"mount --bind {state} {state} && mount -t tmpfs -o size=70m none /dev/shm"
    command = f"{mounts} && exec {sys.executable} -c \"$PROGRAM\" {count} '{fill}'"
    variables = {**os.environ, "PROGRAM": PROGRAM, "CKPT_OBSERVE_DIR": str(state), **environ}
    arguments = ["unshare", "-Urmi", "sh", "-c", command]
    with subprocess.Popen(arguments, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdout.readline() == "running\n"
        container.kill()
    interrupted = adopt(tmp_path)
    return len(delivered(tmp_path).keys() - {"earlier"}), interrupted


def test_last_save_of_a_container(tmp_path):
    """If the state directory is on a volume, a save that began just before the container was killed is reported."""
    assert kill_container(tmp_path, 1) == (1, 1)


def test_pages_in_memory_of_the_container(tmp_path):
    """The control: with pages in the container's shared memory, the save is lost."""
    assert kill_container(tmp_path, 1, CKPT_OBSERVE_PAGES_DIR="/dev/shm/pages") == (0, 0)


def test_shared_memory_gets_full(tmp_path):
    """When shared memory is full, further saves are protected by pages on disk: all but those in the first file are reported."""
    reported, interrupted = kill_container(tmp_path, 400, fill="yes", CKPT_OBSERVE_PAGES_DIR="/dev/shm/pages")
    assert reported == interrupted
    assert 400 - FIRST_PAGES <= reported < 400  # the first file of pages is gone with the container, as in the control
