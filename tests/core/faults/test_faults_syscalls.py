"""A save that dies, or is refused, at each of its system calls (F2, F3)."""

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


def run(subject, place, first, *strace):
    """What the program said; with what it complained of, where it said nothing."""
    tracing = ["strace", "-f", *strace] if strace else []
    done = subprocess.run(
        [*tracing, sys.executable, SUBJECTS, subject, str(place), str(first), "1"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or f"nothing, exit {done.returncode}: {done.stderr[-2000:]}"


def calls_of(subject, tmp_path):
    """Every call of one save that changes something: (name, how many-th of that name)."""
    place = prepared(subject, tmp_path, "traced")
    assert run(subject, place, 1, "-o", str(tmp_path / "trace"), "-e", f"trace={CALLS}") == "saved 1"
    names = re.findall(r"^\d+ +(\w+)\(", (tmp_path / "trace").read_text(), re.MULTILINE)
    assert names, "strace saw no call: is it allowed to trace here?"
    return [(name, number + 1) for name, count in Counter(names).items() for number in range(count)]


def struck(subject, tmp_path, what):
    """For each call: what the program said, what a reader gets afterwards, where, and which call was struck."""
    for name, number in calls_of(subject, tmp_path):
        place = prepared(subject, tmp_path, f"{name}{number}")
        said = run(subject, place, 1, "-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={number}")
        yield said, loaded(subject, place), place, name


def loaded(subject, place):
    """What a reader gets: the number that was saved, or None for something torn."""
    if subject in URLS:
        with Checkpointer(URLS[subject].format(place)) as checkpointer:
            state = checkpointer.load("t")
    else:
        try:
            state = json.loads((place / "state.json").read_bytes())
        except ValueError:
            return None
    return state["n"] if state["text"] == "x" * 3000 else None


def prepared(subject, tmp_path, number):
    """A place with an old state. Without one a refused save would leave nothing, and look like a lost checkpoint."""
    place = tmp_path / str(number)
    place.mkdir()
    assert run(subject, place, 0) == "saved 0"
    return place


@pytest.mark.parametrize("subject", URLS)
def test_killed_at_every_call(tmp_path, subject):
    """F2: there is the old state or the new one, never anything else; what was acknowledged is there; the next save works."""
    found = set()
    for said, number, place, _ in struck(subject, tmp_path, "signal=SIGKILL"):
        found.add(number)
        assert number in ((1,) if said == "saved 1" else (0, 1))
        with Checkpointer(URLS[subject].format(place)) as checkpointer:
            checkpointer.save("t", {"n": 2, "text": "x" * 3000})
        assert loaded(subject, place) == 2
    assert found == {0, 1}


def test_rig_catches_a_torn_write(tmp_path):
    """Control for F2: a program that overwrites in place is caught."""
    assert None in {number for _, number, _, _ in struck("naive_in_place", tmp_path, "signal=SIGKILL")}


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR"])
@pytest.mark.parametrize("subject", URLS)
def test_refused_at_every_call(tmp_path, subject, error):
    """F3: an error at any call is a typed error that leaves the old state, or the save succeeded all the same; no litter stays."""
    refused = 0
    for said, number, place, name in struck(subject, tmp_path, f"error={error}"):
        assert said.startswith("refused ") or number == 1
        refused += said.startswith("refused ")
        if said.startswith("refused "):
            assert number == 0
        if subject != "sqlite" and name != "unlinkat":
            assert not [entry for entry in os.listdir(place / "store" / "t") if entry.endswith(".tmp")]
        with Checkpointer(URLS[subject].format(place)) as checkpointer:
            checkpointer.save("t", {"n": 2, "text": "x" * 3000})
        assert loaded(subject, place) == 2
    assert refused > 1 or error == "EINTR"  # most calls are simply made again after a signal


def test_rig_catches_ignored_errors(tmp_path):
    """Control for F3: a program that reports success whatever happened is caught."""
    outcomes = [(said, number) for said, number, _, _ in struck("naive_ignoring_errors", tmp_path, "error=ENOSPC")]
    assert [said for said, number in outcomes if said == "saved 1" and number != 1]
