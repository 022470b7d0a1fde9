"""Full disks and power failures, on real file systems."""

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
from ckpt_observe.errors import CapacityError, StorageError

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.getuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and mkfs.ext4, to mount file systems"),
]

SUBJECTS = str(Path(__file__).with_name("subjects.py"))
URLS = {"file": "file://{}/store", "sqlite": "sqlite://{}/store.db", "naive_no_directory_sync": "file://{}/store"}
EXT4_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2


@contextmanager
def mounted(directory, *arguments):
    process = subprocess.run(["mount", *arguments, str(directory)], capture_output=True, text=True, check=False)
    if process.returncode:
        pytest.skip(f"mounting is not permitted: {process.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("subject", ["file", "sqlite"])
def test_full_disk_and_recovery(tmp_path, subject):
    """A full disk raises CapacityError and preserves existing checkpoints; once there is space, saving continues without a restart."""
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


@pytest.mark.parametrize("subject", ["file", "sqlite"])
def test_read_only_disk(tmp_path, subject):
    """Saving to a store on a file system that became read-only fails with a code of its own, not as a missing permission."""
    url = URLS[subject].format(tmp_path)
    with mounted(tmp_path, "-t", "tmpfs", "tmpfs"):
        with Checkpointer(url) as checkpointer:
            checkpointer.save("t", {})
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with Checkpointer(url) as checkpointer, pytest.raises(StorageError) as caught:
            checkpointer.save("t", {})
        assert (caught.value.code, caught.value.retryable) == ("storage.read_only", False)


def test_rig_detects_an_overwrite_on_a_full_disk(tmp_path):
    """Control: a program that overwrites its only file loses it."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        only = tmp_path / "state"
        only.write_bytes(b"good")
        (tmp_path / "filler").write_bytes(bytes(2 * 1024 * 1024 - 3 * 4096))
        with pytest.raises(OSError, match="No space"):
            only.write_bytes(bytes(100_000))
        assert only.read_bytes() != b"good"


def power_failures(subject, tmp_path, cuts):
    """Yield for each power failure the last acknowledged number, and the number that is loaded after mounting again."""
    image, directory = tmp_path / "image", tmp_path / "mnt"
    directory.mkdir()
    for cut in range(cuts):
        with open(image, "wb") as file:
            file.truncate(32 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        with mounted(directory, "-o", "loop", str(image)):
            acknowledged = run_until(subject, directory, saves=3 + cut % 11)
        with mounted(directory, "-o", "loop", str(image)):
            yield acknowledged, load_newest(subject, directory)


def run_until(subject, directory, saves):
    """Run the program, stop it after some saves, and cut the power. Stopped first, because a sync during the cut may wrongly succeed."""
    program = subprocess.Popen([sys.executable, SUBJECTS, subject, str(directory), "0", "1500"], stdout=subprocess.PIPE)
    output = b""
    try:
        while output.count(b"\n") < saves:
            output += os.read(program.stdout.fileno(), 65536)
        program.send_signal(signal.SIGSTOP)
        await_stopped(program.pid)
        while select.select([program.stdout], [], [], 0)[0] and (more := os.read(program.stdout.fileno(), 65536)):
            output += more
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.ioctl(descriptor, EXT4_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(descriptor)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    return int(output.split()[-1])


def await_stopped(pid):
    """Wait until the process is stopped, or has ended meanwhile."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("T", "t", "Z"):
        time.sleep(0.001)


def load_newest(subject, directory):
    """Return the newest intact number, or -1 if there is none."""
    with Checkpointer(URLS[subject].format(directory)) as checkpointer:
        assert all(finding.good for finding in checkpointer.verify())
        infos = checkpointer.list("t")
        return checkpointer.load("t")["n"] if infos else -1


@pytest.mark.parametrize("subject", ["file", "sqlite"])
def test_power_failure_loses_nothing_acknowledged(tmp_path, subject):
    """Every acknowledged save is intact after a power failure, and nothing is damaged."""
    outcomes = list(power_failures(subject, tmp_path, cuts=int(os.environ.get("CUTS", "25"))))
    assert [(acknowledged, number) for acknowledged, number in outcomes if number < acknowledged] == []


def test_rig_detects_a_missing_directory_sync(tmp_path):
    """Control: a program that syncs the file but not its directory loses acknowledged saves."""
    outcomes = list(power_failures("naive_no_directory_sync", tmp_path, cuts=60))
    assert [acknowledged for acknowledged, number in outcomes if number < acknowledged]
