"""Full disks and power failures, on real file systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CapacityError, StorageError
from tests.faults.power import Disk, mounted, private_mounts, why_no_mounts

NO_MOUNTS = why_no_mounts()
pytestmark = [pytest.mark.faults, pytest.mark.skipif(NO_MOUNTS is not None, reason=NO_MOUNTS or "")]

SUBJECTS = str(Path(__file__).with_name("subjects.py"))
URLS = {"file": "file://{}/store", "sqlite": "sqlite://{}/store.db", "naive_no_directory_sync": "file://{}/store"}


@pytest.fixture(autouse=True)
def mounts():
    """Mounts that no other process copies: a disk that is still mounted elsewhere after a power failure cannot be mounted again."""
    with private_mounts():
        yield


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
    disk = Disk(tmp_path)
    for cut in range(cuts):
        disk.format()
        with disk.mounted():
            acknowledged = run_until(subject, disk, saves=3 + cut % 11)
        with disk.mounted():
            yield acknowledged, load_newest(subject, disk.directory)


def run_until(subject, disk, saves):
    """Run the program, stop it after some saves, and cut the power. Return the last acknowledged number."""
    command = [sys.executable, SUBJECTS, subject, str(disk.directory), "0", "1500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        output, pipe = b"", program.stdout.fileno()
        while output.count(b"\n") < saves:
            output += os.read(pipe, 65536)
        output += disk.cut_under(program.pid, pipe)
    return int(output.split()[-1])


def load_newest(subject, directory):
    """Return the newest intact number, or -1 if there is none."""
    with Checkpointer(URLS[subject].format(directory)) as checkpointer:
        assert all(finding.good for finding in checkpointer.verify())
        infos = checkpointer.list("t")
        return checkpointer.load("t")["n"] if infos else -1


@pytest.mark.parametrize("subject", ["file", "sqlite"])
def test_power_failure_loses_nothing_acknowledged(tmp_path, subject):
    """Every acknowledged save is intact after a power failure, and nothing is damaged."""
    outcomes = list(power_failures(subject, tmp_path, cuts=int(os.environ.get("CUTS", "10"))))
    assert [(acknowledged, number) for acknowledged, number in outcomes if number < acknowledged] == []


def test_rig_detects_a_missing_directory_sync(tmp_path):
    """Control: a program that syncs the file but not its directory loses acknowledged saves."""
    assert any(number < acknowledged for acknowledged, number in power_failures("naive_no_directory_sync", tmp_path, cuts=60))
