"""A save is killed, or gets an error, at each of its system calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
]

SUBJECTS = str(Path(__file__).with_name("subjects.py"))
CALLS = "write,pwrite64,fsync,fdatasync,link,linkat,unlink,unlinkat,mkdir,mkdirat,rename,renameat,ftruncate"
URLS = {"file": "file://{}/store", "named_file": "file://{}/store", "sqlite": "sqlite://{}/store.db"}


def run(subject, directory, first, *strace):
    """Run the program and return its output, or if there is none, its exit code and errors."""
    tracing = ["strace", "-f", *strace] if strace else []
    process = subprocess.run(
        [*tracing, sys.executable, SUBJECTS, subject, str(directory), str(first), "1"], capture_output=True, text=True, check=False
    )
    return process.stdout.strip() or f"nothing, exit {process.returncode}: {process.stderr[-2000:]}"


def changing_calls(subject, tmp_path):
    """Return every call of a save that changes something: its name, and its number among those of that name."""
    prepare(subject, tmp_path)
    directory = copy_old_state(tmp_path, "traced")
    assert run(subject, directory, 1, "-o", str(tmp_path / "trace"), "-e", f"trace={CALLS}") == "saved 1"
    names = re.findall(r"^\d+ +(\w+)\(", (tmp_path / "trace").read_text(), re.MULTILINE)
    assert names, "strace saw no call: is tracing permitted?"
    return [(name, number + 1) for name, count in Counter(names).items() for number in range(count)]


def inject_at_every_call(subject, tmp_path, fault, *options):
    """Yield for each call the program's output, the number that a reader loads afterwards, the directory, and the call that failed."""
    for name, number in changing_calls(subject, tmp_path):
        directory = copy_old_state(tmp_path, f"{name}{number}")
        injection = f"inject={name}:{fault}:when={number}"
        output = run(subject, directory, 1, *options, "-o", os.devnull, "-e", f"trace={name}", "-e", injection)
        yield output, load_number(subject, directory), directory, name


def load_number(subject, directory):
    """Return the number that a reader loads, or None if the state is torn."""
    if subject in URLS:
        with Checkpointer(URLS[subject].format(directory)) as checkpointer:
            state = checkpointer.load("t")
    else:
        try:
            state = json.loads((directory / "state.json").read_bytes())
        except ValueError:
            return None
    return state["n"] if state["text"] == "x" * 3000 else None


def prepare(subject, tmp_path):
    """Create a directory with an old state. Without one, a refused save would leave nothing and look like a lost checkpoint."""
    (tmp_path / "old").mkdir()
    assert run(subject, tmp_path / "old", 0) == "saved 0"


def copy_old_state(tmp_path, name):
    return Path(shutil.copytree(tmp_path / "old", tmp_path / name))


@pytest.mark.parametrize("subject", URLS)
def test_killed_at_every_call(tmp_path, subject):
    """A reader loads the old or the new state, never anything else. What was acknowledged is load_number, and the next save works."""
    numbers = set()
    for output, number, directory, _ in inject_at_every_call(subject, tmp_path, "signal=SIGKILL"):
        numbers.add(number)
        assert number in ((1,) if output == "saved 1" else (0, 1))
        with Checkpointer(URLS[subject].format(directory)) as checkpointer:
            checkpointer.save("t", {"n": 2, "text": "x" * 3000})
        assert load_number(subject, directory) == 2
    assert numbers == {0, 1}


def test_rig_detects_a_torn_write(tmp_path):
    """Control: a program that overwrites its file in directory is detected."""
    assert None in {number for _, number, _, _ in inject_at_every_call("naive_in_directory", tmp_path, "signal=SIGKILL")}


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR"])
@pytest.mark.parametrize("subject", URLS)
def test_error_at_every_call(tmp_path, subject, error):
    """An error at any call raises a CheckpointError and preserves the old state, unless the save succeeds. No temporary file remains."""
    refused = 0
    only_these_calls = "--seccomp-bpf"  # faster than to stop at every call; but an injected signal would come after the call
    for output, number, directory, name in inject_at_every_call(subject, tmp_path, f"error={error}", only_these_calls):
        assert output.startswith("refused ") or number == 1
        refused += output.startswith("refused ")
        if output.startswith("refused "):
            assert number == 0
        if subject != "sqlite" and name != "unlinkat":
            assert not [entry for entry in os.listdir(directory / "store" / "t") if entry.endswith(".tmp")]
        with Checkpointer(URLS[subject].format(directory)) as checkpointer:
            checkpointer.save("t", {"n": 2, "text": "x" * 3000})
        assert load_number(subject, directory) == 2
    assert refused > 1 or error == "EINTR"  # most calls are repeated after a signal


def test_rig_detects_ignored_errors(tmp_path):
    """Control: a program that always reports success is detected."""
    outcomes = [(output, number) for output, number, _, _ in inject_at_every_call("naive_ignoring_errors", tmp_path, "error=ENOSPC")]
    assert [output for output, number in outcomes if output == "saved 1" and number != 1]
