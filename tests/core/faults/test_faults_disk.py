"""Disks that fill up (F4) and power that goes away (F7)."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CapacityError

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.getuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and mkfs.ext4, to mount file systems"),
]

SUBJECTS = str(Path(__file__).with_name("subjects.py"))
URLS = {"file": "file://{}/store", "sqlite": "sqlite://{}/store.db", "naive_no_directory_sync": "file://{}/store"}
EXT4_SHUTDOWN, WITHOUT_FLUSHING_THE_LOG = 0x8004587D, 2


@contextmanager
def mounted(place, *arguments):
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("subject", ["file", "sqlite"])
def test_full_disk_and_back(tmp_path, subject):
    """F4: a full disk is a capacity error and leaves what was saved; once there is room, saving goes on without a restart."""
    url = URLS[subject].format(tmp_path)
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=2m", "tmpfs"), Checkpointer(url, keep_last=2) as checkpointer:
        for cycle in range(20):
            checkpointer.save("t", {"cycle": cycle})
            filler = tmp_path / "filler"
            with open(filler, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
            with pytest.raises(CapacityError) as caught:
                checkpointer.save("t", {"cycle": cycle, "text": "x" * 100_000})
            assert caught.value.code == "storage.no_space"
            assert checkpointer.load("t") == {"cycle": cycle}
            filler.unlink()
        assert all(finding.good for finding in checkpointer.verify())


def test_rig_catches_an_overwrite_on_a_full_disk(tmp_path):
    """Control for F4: a program that overwrites its one file loses it."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        only = tmp_path / "state"
        only.write_bytes(b"good")
        (tmp_path / "filler").write_bytes(bytes(2 * 1024 * 1024 - 3 * 4096))
        with pytest.raises(OSError, match="No space"):
            only.write_bytes(bytes(100_000))
        assert only.read_bytes() != b"good"


def power_cuts(subject, tmp_path, cuts):
    """For each cut: the last number acknowledged before it, and what is there after the file system came back."""
    image, place = tmp_path / "image", tmp_path / "mnt"
    place.mkdir()
    for cut in range(cuts):
        with open(image, "wb") as file:
            file.truncate(32 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        with mounted(place, "-o", "loop", str(image)):
            acknowledged = run_until(subject, place, saves=3 + cut % 11)
        with mounted(place, "-o", "loop", str(image)):
            yield acknowledged, loaded(subject, place)


def run_until(subject, place, saves):
    """Run the program, stop it after some saves, and take the power away. Stopped first: a sync that races the cut may lie."""
    program = subprocess.Popen([sys.executable, SUBJECTS, subject, str(place), "0", "1500"], stdout=subprocess.PIPE)
    said = b""
    try:
        while said.count(b"\n") < saves:
            said += os.read(program.stdout.fileno(), 65536)
        program.send_signal(signal.SIGSTOP)
        await_stopped(program.pid)
        while select.select([program.stdout], [], [], 0)[0] and (more := os.read(program.stdout.fileno(), 65536)):
            said += more
        directory = os.open(place, os.O_RDONLY)
        fcntl.ioctl(directory, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING_THE_LOG))
        os.close(directory)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    return int(said.split()[-1])


def await_stopped(pid):
    """Stopped, or at its end: it may have come that far in the meantime."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("T", "t", "Z"):
        time.sleep(0.001)


def loaded(subject, place):
    """The newest number that is there and whole; -1 for nothing."""
    with Checkpointer(URLS[subject].format(place)) as checkpointer:
        assert all(finding.good for finding in checkpointer.verify())
        infos = checkpointer.list("t")
        return checkpointer.load("t")["n"] if infos else -1


@pytest.mark.parametrize("subject", ["file", "sqlite"])
def test_power_cut_loses_nothing_acknowledged(tmp_path, subject):
    """F7: what a save acknowledged is there after the power went away, whole; nothing is damaged."""
    outcomes = list(power_cuts(subject, tmp_path, cuts=int(os.environ.get("CUTS", "25"))))
    assert [(acknowledged, found) for acknowledged, found in outcomes if found < acknowledged] == []


def test_rig_catches_a_missing_directory_sync(tmp_path):
    """Control for F7: a program that syncs the file but not its directory loses acknowledged saves."""
    outcomes = list(power_cuts("naive_no_directory_sync", tmp_path, cuts=60))
    assert [acknowledged for acknowledged, found in outcomes if found < acknowledged]
