"""Names of tasks and checkpoints, and their file names."""

from __future__ import annotations

import datetime as dt
import os

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.format.names import from_file_name, new_id, to_file_name
from ckpt_observe.errors import InvalidNameError

HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "/abs",
    "a/b",
    "a\\b",
    "~",
    "a~b",
    "%2e%2e",
    "CON",
    "x' OR 1=1; --",
    "naïve ☃ 😀",
    "x" * 256,
    "☃" * 256,
    "-rf",
    "a.ckpt",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_inside_the_store(tmp_path, name):
    """A name from the network never leaves the store's directory, and is listed as it was saved."""
    root = tmp_path / "root"
    checkpointer = Checkpointer(root)
    checkpointer.save(name, {"n": 1}, id=name)
    assert checkpointer.load(name, name) == {"n": 1}
    assert [info.id for info in checkpointer.list(name)] == [name]
    assert checkpointer.store.tasks() == (name,)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_encoding_is_injective():
    """Different names have different file names. These are short, without separators or a leading dot, and short names can be decoded."""
    encoded = {name: to_file_name(name) for name in HOSTILE}
    assert len(set(encoded.values())) == len(HOSTILE)
    for name, file_name in encoded.items():
        assert len(file_name) <= 200
        assert not set(file_name) & {"/", "\\", "\0"}
        assert file_name[0] != "."
        assert from_file_name(file_name) in (name, None)


@pytest.mark.parametrize("name", ["", "x" * 257, "nul\0", "line\nbreak", "\ud800", 7, None, b"x"])
def test_invalid_names_are_refused(name):
    """Names that not every store can handle are refused before anything is written."""
    checkpointer = Checkpointer("memory://")
    with pytest.raises(InvalidNameError):
        checkpointer.save(name, {})
    if name is not None:
        with pytest.raises(InvalidNameError):
            checkpointer.save("task", {}, id=name)
    assert checkpointer.store.tasks() == ()


def test_hashed_file_name_of_another_name_is_refused(tmp_path):
    """The hashed file name of a long name is not a valid id, and as a task it has its own directory."""
    victim = "x" * 250
    checkpointer = Checkpointer(tmp_path, keep_last=1)
    checkpointer.save(victim, {"n": 1}, id="a")
    hashed = to_file_name(victim)
    checkpointer.save(hashed, {"n": 2}, id="b")
    assert checkpointer.load(victim) == {"n": 1}
    assert checkpointer.load(hashed) == {"n": 2}
    with pytest.raises(InvalidNameError, match="reserved"):
        checkpointer.save("t", {}, id=hashed)


def test_forked_children_create_different_ids():
    """Two children of one process, and the process itself, do not create the same ids, although they inherit the same generator."""
    created = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def id_in_child():
        read, write = os.pipe()
        if not (pid := os.fork()):
            os.write(write, new_id(created).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        with open(read) as pipe:
            return pipe.read()

    assert len({id_in_child(), id_in_child(), new_id(created)}) == 3
