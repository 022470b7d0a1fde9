"""The entry point of the readers: formats are recognized by content, and everything else is a typed error."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import tracemalloc
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ckpt_observe import readers
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import AccessError, CapacityError, CheckpointNotFoundError, CompatibilityError, ConfigError, LocationError
from ckpt_observe.readers import pickle_nodes, reading

GOLDEN = Path(__file__).parent / "golden"


def save_twice(url):
    with Checkpointer(url, format="json") as checkpointer:
        for step, text in enumerate(("x" * 1000, "y" * 1000)):
            checkpointer.save("run/1", {"messages": text, "constant": "c" * 300, "step": step}, step=step)
        checkpointer.save("run/2", {"messages": "z" * 10}, step=0)


@pytest.mark.parametrize("scheme", ["file", "jsonl", "git"])
def test_directories_of_the_core_are_recognized(tmp_path, scheme):
    """The directory alone, without a URL, is enough; keys and other bytes add up to the serialized bytes of all checkpoints."""
    save_twice(f"{scheme}://{tmp_path}/store")
    contents = readers.read(tmp_path / "store")
    assert contents.format == scheme
    assert [(entry.name, entry.details["checkpoints"]) for entry in contents.entries] == [("messages", 3), ("constant", 2), ("step", 2)]
    assert sum(entry.size for entry in contents.entries) + contents.other_size == contents.size
    assert {breakdown.by for breakdown in contents.breakdowns} == {"task", "step", "checkpoint"}
    for breakdown in contents.breakdowns:
        assert sum(entry.size for entry in breakdown.entries) + breakdown.other_size == contents.size
    assert contents.repeated_size == 302  # the JSON string of the constant
    assert [entry.name for entry in contents.breakdown("task").entries] == ["run/1", "run/2"]


def test_compressed_and_packed_stores_are_recognized(tmp_path):
    """Files of JSON Lines may be compressed, and `git gc` moves references into one file."""
    save_twice(f"jsonl://{tmp_path}/compressed?gzip")
    save_twice(f"git://{tmp_path}/packed")
    for repository in (tmp_path / "packed").iterdir():
        subprocess.run(["git", "--git-dir", repository, "pack-refs", "--all", "--prune"], check=True)
        (repository / "refs" / "checkpoints").rmdir()
    assert readers.read(tmp_path / "compressed").format == "jsonl"
    assert readers.read(tmp_path / "packed").format == "git"


@pytest.mark.parametrize("scheme", ["file", "jsonl"])
def test_store_whose_checkpoints_are_all_damaged(tmp_path, scheme):
    """It is still a store, so that `verify` finds the damage: the only checkpoint of a first run may be what a crash has left."""
    Checkpointer(f"{scheme}://{tmp_path}").save("run", {"step": 1})
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.chmod(0o600)
    path.write_bytes(bytes(path.stat().st_size))
    assert readers.read(tmp_path).format == scheme


def test_directories_of_others_are_not_stores_of_the_core(tmp_path):
    """Lightning has `.ckpt` files in subdirectories, too, datasets are JSON Lines, and most bare repositories contain code."""
    (tmp_path / "lightning" / "checkpoints").mkdir(parents=True)
    shutil.copy(GOLDEN / "torch.pt", tmp_path / "lightning" / "checkpoints" / "last.ckpt")
    (tmp_path / "lightning" / "checkpoints" / "sharded.ckpt").mkdir()
    (tmp_path / "dataset" / "train").mkdir(parents=True)
    (tmp_path / "dataset" / "train" / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "dataset" / "train" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "b"}\n'))
    (tmp_path / "dataset" / "train" / "c.jsonl.gz").write_bytes(b"\x1f\x8b damaged")
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "repositories" / "code.git"], check=True)
    for path in tmp_path.iterdir():
        with pytest.raises(CompatibilityError, match="is not known"):
            readers.read(path)


def test_directory_with_checkpoints_names_them(tmp_path):
    """The directory of a run is not a checkpoint. The message names the checkpoints in it."""
    shutil.copytree(GOLDEN / "orbax", tmp_path / "2")
    shutil.copy(GOLDEN / "torch.pt", tmp_path / "model.pt")
    (tmp_path / "damaged.pt").write_bytes(b"PK\x03\x04 damaged")
    os.mkfifo(tmp_path / "fifo")
    text = f"{tmp_path} is not a checkpoint, but a directory with checkpoints. Name one of them, such as: {tmp_path}/2, {tmp_path}/model.pt"
    with pytest.raises(CompatibilityError, match=f"{re.escape(text)}$"):
        readers.read(tmp_path)


def test_a_database_of_the_core_is_not_changed(tmp_path):
    """A database of an older version, in another journal mode, is shown as it is: not upgraded, not switched to a log of its own."""
    path = tmp_path / "a.db"
    save_twice(f"sqlite://{path}")
    expected = readers.read(path)
    assert (expected.format, [entry.name for entry in expected.entries]) == ("sqlite", ["messages", "constant", "step"])
    with closing(sqlite3.connect(path)) as connection:
        for statement in (
            *("DROP INDEX checkpoints_by_task", "DROP INDEX checkpoints_by_time", "ALTER TABLE checkpoints DROP COLUMN facts"),
            *("PRAGMA user_version = 1", "PRAGMA journal_mode = DELETE"),
        ):
            connection.execute(statement)
    before = path.read_bytes()
    assert readers.read(path) == expected
    assert readers.read(path, task="run/1", checkpoint="latest").metadata["step"] == 1
    with pytest.raises(CheckpointNotFoundError):
        readers.read(path, task="run/9")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.db"]


def test_damaged_rows_hide_no_others(tmp_path):
    """Rows of a database of the core whose header or text is damaged, or absurdly large, are left out, and the others are shown."""
    path = tmp_path / "a.db"
    save_twice(f"sqlite://{path}")
    with closing(sqlite3.connect(path)) as connection, connection:
        insert = "INSERT INTO checkpoints (task, id, created, status, stored_size, header, payload) VALUES (?, ?, 1, '', 1, {}, x'')"
        connection.execute(insert.format("x'00'"), ("run/3", "1"))
        connection.execute(insert.format("zeroblob(20000000)"), ("run/3", "2"))
        connection.execute(insert.format("7"), ("run/3", "3"))
        connection.execute("UPDATE checkpoints SET id = CAST(x'ff' AS TEXT) WHERE task = 'run/3' AND id = '1'")
    contents = readers.read(path)
    assert [entry.name for entry in contents.breakdown("task").entries] == ["run/1", "run/2"]


def test_damaged_rows_are_not_collected(tmp_path):
    """Large headers that are damaged are read one after the other: a database of many gigabytes does not fill the memory."""
    path = tmp_path / "a.db"
    save_twice(f"sqlite://{path}")
    with closing(sqlite3.connect(path)) as connection, connection:
        insert = "INSERT INTO checkpoints (task, id, created, status, stored_size, header, payload) VALUES ('t', ?, 1, '', 1, ?, x'')"
        connection.executemany(insert, ((str(number), bytes(1_000_000)) for number in range(20)))
    tracemalloc.start()
    try:
        assert len(readers.read(path).entries) == 3
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_one_checkpoint_of_the_core(tmp_path):
    """A task and a reference select one checkpoint, whose keys have digests."""
    save_twice(f"file://{tmp_path}")
    newest = readers.read(tmp_path, task="run/1", checkpoint="latest")
    earlier = readers.read(tmp_path, task="run/1", checkpoint="latest~1")
    assert newest.metadata["step"] == 1
    assert newest.metadata["task"] == "run/1"
    assert readers.read(tmp_path, task="run/1", checkpoint=newest.metadata["id"][:-2]) == newest
    result = readers.diff(earlier, newest)
    assert [change.path for change in result.changes] == [("messages",), ("step",)]
    assert result.changes[0].differs == ("digest",)
    assert result.unchanged == (("constant",),)


def test_what_is_not_there(tmp_path):
    """A missing path, task or checkpoint is a CheckpointNotFoundError."""
    save_twice(f"file://{tmp_path}")
    for arguments in ({"task": "run/9"}, {"task": "run/1", "checkpoint": "nine"}):
        with pytest.raises(CheckpointNotFoundError):
            readers.read(tmp_path, **arguments)
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        readers.read(tmp_path / "missing.pt")
    assert not (tmp_path / "missing.pt").exists()


@pytest.mark.parametrize("arguments", [{"depth": 0}, {"checkpoint": "x"}])
def test_wrong_arguments(tmp_path, arguments):
    """Arguments that make no sense are ConfigErrors."""
    with pytest.raises(ConfigError):
        readers.read(tmp_path, **arguments)


def test_other_kinds_of_files(tmp_path):
    """A FIFO does not block, a cycle of links ends, an unknown format lists the known ones, and what is empty is called so."""
    os.mkfifo(tmp_path / "fifo")
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    with pytest.raises(LocationError, match="neither a regular file nor a directory"):
        readers.read(tmp_path / "fifo")
    with pytest.raises(AccessError, match="symbolic links"):
        readers.read(tmp_path / "a")
    for name, text in {"text": "safetensors", "empty": "empty is empty", "directory": "directory is empty"}.items():
        with pytest.raises(CompatibilityError, match=text):
            readers.read(tmp_path / name)


class Value:
    """An object of any library: the readers follow the names of its attributes."""

    def __init__(self, **attributes):
        self.__dict__ |= attributes


def test_items_that_are_not_read_are_mentioned(tmp_path, monkeypatch):
    """A container with more items than are remembered has a warning: sizes of its other items are not known."""
    monkeypatch.setattr(pickle_nodes, "_MAX_ITEMS", 3)
    for count in (3, 4):
        (tmp_path / f"{count}.pkl").write_bytes(pickle.dumps({f"key{number}": number for number in range(count)}))
    assert not any("only the first" in warning for warning in readers.read(tmp_path / "3.pkl").warnings)
    assert any("only the first 3 of 4" in warning for warning in readers.read(tmp_path / "4.pkl").warnings)
    chunks = {Value(fqn="weight", index=number): Value(relative_path="__0_0.distcp", offset=number * 10, length=10) for number in range(5)}
    metadata = Value(state_dict_metadata={"weight": Value(size=(50,))}, storage_data=chunks)
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(metadata))
    (tmp_path / "dcp" / "__0_0.distcp").write_bytes(bytes(50))
    contents = readers.read(tmp_path / "dcp")
    assert [entry.size for entry in contents.entries] == [30]
    assert any("only the first 3 of 5" in warning for warning in contents.warnings)


def test_arrays_of_orbax_without_a_database(tmp_path):
    """The bytes of an array are those of all files below its directory, also in directories of chunks; a prefix of its name is another."""
    leaf = {"value_metadata": {"value_type": "jax.Array", "write_shape": [2]}}
    tree = {name: {"key_metadata": [{"key": part} for part in name.split(".")], **leaf} for name in ("w", "w.b", "wide")}
    (tmp_path / "_METADATA").write_bytes(msgspec.json.encode({"tree_metadata": tree, "use_ocdbt": False}))
    for file, size in {"w/0": 10, "w/c/0/0": 20, "w.b/0": 5, "wide/0": 7, "other/0": 3}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(bytes(size))
    (tmp_path / "wide" / ".zarray").write_text('{"dtype": "<f4", "shape": [4]}')
    entries = {entry.name: (entry.size, entry.dtype, entry.shape) for entry in readers.read(tmp_path).entries}
    assert entries == {"w": (30, "", (2,)), "w/b": (5, "", (2,)), "wide": (37, "<f4", (4,))}


def test_memory_that_is_exhausted(monkeypatch):
    """Too little memory for a checkpoint is a typed error, like every other reason why it cannot be read."""

    def find_format(_candidate):
        raise MemoryError

    monkeypatch.setattr(reading, "find_format", find_format)
    with pytest.raises(CapacityError, match="not enough memory to read") as caught:
        readers.read(GOLDEN / "torch.pt")
    assert caught.value.code == "memory.exhausted"
