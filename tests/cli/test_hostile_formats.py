"""Every command with hostile files: nothing of them is executed, errors are typed, memory is bounded, and no file is changed."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import hostile_files
from hostile_files import GOLDEN

from ckpt_observe.cli.main import main

COMMANDS = {
    "list": "list FILE",
    "show": "show FILE --depth 50",
    "show-task": "show FILE t latest",
    "show-deep": "show FILE t latest --depth 3",
    "diff": "diff FILE FILE",
    "log": "log FILE t",
    "extract": "extract FILE t",
    "verify": "verify FILE",
    "prune": "prune FILE --keep-last 1 --yes",
    "drill": "drill FILE",
    "stats": "stats FILE",
}
READS = ("list", "show", "diff", "stats")
"""Commands that show everything that can be read."""
LOADS = ("extract", "prune", "drill")
"""Commands that need a store of the core."""
LIMITED_COMMANDS = Path(__file__).parent / "limited_commands.py"


class Done(NamedTuple):
    code: int
    out: str
    err: str


def state_of(directory):
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(directory.rglob("*"))}


def run_all(directory, tmp_path, commands=COMMANDS, location=str):
    """Run the commands with each file, in a process with little memory. Return what they did by file and command."""
    before = state_of(directory)
    names = [(path, command) for path in sorted(directory.iterdir()) for command in commands]
    lines = [[location(path) if word == "FILE" else word for word in COMMANDS[command].split()] for path, command in names]
    environment = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages")}
    process = subprocess.run(
        [sys.executable, str(LIMITED_COMMANDS), str(GOLDEN / "torch.pt")],
        input="\n".join(map(json.dumps, lines)),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    control, *results = process.stdout.splitlines()
    assert control == "0", "the control: more memory than the limit cannot be allocated"
    assert state_of(directory) == before, "no file was changed or created"
    done = {(path.name, command): Done(*json.loads(line)) for (path, command), line in zip(names, results, strict=True)}
    for name, result in done.items():
        assert isinstance(result.code, int), (name, result)
        assert result.err.startswith("ckpt-observe: ") or result.code == 0, (name, result)
        assert "Traceback" not in result.err
        assert "not enough memory" not in result.err, (name, "the limit of the process, and not ours, has stopped it")
        assert result.out == "" or result.code in (0, 3), (name, result)
    return done


def codes(done, commands=COMMANDS):
    """Return the set of exit codes of each file."""
    files = dict.fromkeys(name for name, _ in done)
    return {file: {done[file, command].code for command in commands} for file in files}


def test_nothing_is_executed(tmp_path):
    """A pickle that runs a command, in every format, is shown with a warning, and no command runs it. The control runs it."""
    (tmp_path / "files").mkdir()
    marker = tmp_path / "executed"
    data = hostile_files.create_attacks(tmp_path / "files", marker)
    done = run_all(tmp_path / "files", tmp_path)
    assert not marker.exists()
    assert codes(done, READS) == {name: {1} if name == "dcp" else {0} for name in codes(done)}
    assert codes(done, LOADS) == {name: {2} for name in codes(done)}
    for name in ("a.pkl", "a.joblib", "a.pt", "legacy.pth"):
        assert "posix.system, which can run commands or code" in done[name, "show"].err
    for name in ("a.npy", "a.npz"):
        assert "which can run code" in done[name, "show"].err
    assert "os.system" in done["a.keras", "show"].out
    assert "pickled" in done["a.db", "show"].err
    assert done["dcp", "show"].code == 1
    assert done["dcp", "verify"].code == 3
    pickle.loads(data)
    assert marker.exists(), "the control: loading it runs the command"


@pytest.mark.parametrize("command", [*READS, "verify"])
def test_names_that_are_not_unicode(tmp_path, capsys, command):
    """In JSON, a byte of a file name that is not UTF-8, and half a character in a key, are escapes: no value changes."""
    path = tmp_path / os.fsdecode(b"\xff.pkl")
    path.write_bytes(b"\x80\x04}\x8c\x03\xed\xa0\x80K\x01s.")
    words = [str(path) if word == "FILE" else word for word in COMMANDS[command].split()]
    assert main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    assert (r"\udcff.pkl" in out) == (command != "diff")
    assert (r"\ud800" in out) == (command in ("show", "diff", "stats"))
    assert [json.loads(line) for line in out.splitlines()]


@pytest.mark.faults
def test_bombs(tmp_path):
    """A member that becomes 3 GiB is refused, whether its zip directory says so or not; a compressed pickle is read in small pieces."""
    (tmp_path / "files").mkdir()
    hostile_files.create_bombs(tmp_path / "files")
    (tmp_path / "joblib").mkdir()
    (tmp_path / "files" / "bomb.joblib").rename(tmp_path / "joblib" / "bomb.joblib")
    done = run_all(tmp_path / "files", tmp_path)
    assert codes(done, READS) == {name: {1} for name in codes(done)}
    for name in ("bomb.pt", "bomb.keras"):
        assert "structure_size" in done[name, "show"].err
    for name in ("lying-bomb.pt", "lying-bomb.keras"):
        assert "larger than the 1000 bytes that the zip directory declares" in done[name, "show"].err
        assert done[name, "verify"].code == 3
    shown = run_all(tmp_path / "joblib", tmp_path, ["show"])["bomb.joblib", "show"]
    assert (shown.code, "1.1 GB" in shown.out) == (0, True)


@pytest.mark.faults
def test_dense_files(tmp_path):
    """Structure that needs many times its bytes in memory is refused before it is decoded, or counted instead."""
    (tmp_path / "files").mkdir()
    hostile_files.create_dense_files(tmp_path / "files")
    done = run_all(tmp_path / "files", tmp_path)
    assert codes(done, READS) == {name: {0} if name == "numbers.db" else {1} for name in codes(done)}
    for name in codes(done).keys() - {"numbers.db"}:
        assert "exceeds the limit of 500,000. If you trust this file, read it in Python" in done[name, "show"].err
    assert "30000000" in done["numbers.db", "show-task"].out
    assert "100,000 in one container" in run_all(tmp_path / "files", tmp_path, ["show-deep"])["numbers.db", "show-deep"].err


@pytest.mark.faults
def test_cut_files(tmp_path):
    """A file that ends too early is damaged: `verify` finds it, and the other commands say why they fail."""
    (tmp_path / "files").mkdir()
    hostile_files.create_cut_files(tmp_path / "files")
    done = run_all(tmp_path / "files", tmp_path)
    assert codes(done, READS) == {name: {1} for name in codes(done)}
    assert codes(done, ["verify"]) == {name: {3} for name in codes(done)}
    assert all(code <= {1, 2} for code in codes(done, (*LOADS, "log", "show-task")).values())
    for (name, command), result in done.items():
        if command == "show":
            assert any(word in result.err for word in ("incomplete", "damaged", "needs")), name


@pytest.mark.parametrize("location", [str, "sqlite://{}".format], ids=["path", "url"])
def test_hostile_schemas(tmp_path, location):
    """Views, virtual tables and generated columns are not read, triggers do not fire, and no file is changed, by path or URL."""
    (tmp_path / "files").mkdir()
    hostile_files.create_hostile_schemas(tmp_path / "files")
    done = run_all(tmp_path / "files", tmp_path, location=location)
    readable = {"triggers.db", "writes-view.db", "index.db"}
    assert codes(done, READS) == {name: {0} if name in readable else {1} for name in codes(done)}
    assert codes(done, LOADS) == {name: {2} for name in codes(done)}
    for name in codes(done).keys() - readable:
        assert "the format of" in done[name, "show"].err


@pytest.mark.faults
def test_sparse_files_of_10_gib(tmp_path):
    """A file of 10 GiB with any extension, of zeros or with the right magic bytes, needs no more memory than a small one."""
    (tmp_path / "files").mkdir()
    hostile_files.create_sparse_files(tmp_path / "files")
    done = run_all(tmp_path / "files", tmp_path)
    large = {"magic.ckpt"}
    assert codes(done, READS) == {name: {0} if name in large else {1} for name in codes(done)}
    assert all(done[name, "verify"].code in (1, 3) for name in codes(done).keys() - large)
    assert "10.7 GB" in done["magic.ckpt", "show"].out
