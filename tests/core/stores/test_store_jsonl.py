"""The JSON Lines store: the contract, and files of other tools."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.format.names import to_file_name
from ckpt_observe.core.json_lines import adopt, read_json_lines
from ckpt_observe.core.stores.jsonl import JsonlStore
from ckpt_observe.errors import CheckpointError, CompressionError, ConfigError, ConflictError, SerializationError, StorageError
from ckpt_observe.testing.stores import StoreContract


class TestJsonlStore(StoreContract):
    @pytest.fixture(params=["", "?gzip"], ids=["plain", "gzip"])
    def store(self, request, tmp_path):
        return JsonlStore(f"jsonl://{tmp_path}/lines{request.param}")

    def path(self, store, task, id):
        return f"{store._root}/{to_file_name(task)}/{to_file_name(id)}{store.suffix}"

    def raw_read(self, store, task, id):
        with open(self.path(store, task, id), "rb") as file:
            data = file.read()
        return (gzip.decompress(data) if store._gzip else data).removesuffix(b"\n")

    def raw_write(self, store, task, id, data):
        data += b"\n"
        with open(self.path(store, task, id), "wb") as file:
            file.write(gzip.compress(data) if store._gzip else data)

    def another(self, store):
        return JsonlStore(store.location)

    def test_file_is_json_lines(self, store, checkpointer, state):
        """Any tool for JSON Lines can read the file: first a summary, then the state."""
        info = checkpointer.save("agent", state)
        summary, loaded = read_json_lines(self.path(store, "agent", info.id))
        assert summary["id"] == info.id
        assert loaded == state

    def test_every_flip_and_truncation_of_the_file_is_detected(self, store, checkpointer):
        """This includes files that are compressed as a whole."""
        info = checkpointer.save("t", {"n": 1})
        with open(self.path(store, "t", info.id), "rb") as file:
            raw = file.read()
        for at in range(len(raw)):
            for damaged in (raw[:at], raw[:at] + bytes((raw[at] ^ 16,)) + raw[at + 1 :]):
                with open(self.path(store, "t", info.id), "wb") as file:
                    file.write(damaged)
                try:
                    # gzip ignores some bytes (time, operating system): altering them may change nothing, or raise
                    assert checkpointer.load("t", info.id) == {"n": 1}
                except CheckpointError:
                    continue
                assert damaged != raw[:at]


@pytest.mark.parametrize("option", ["", "?gzip"])
def test_a_listing_reads_headers_only(tmp_path, option):
    """A listing finds long headers, leaves out files that are cut off, and does not read the states, however large they are."""
    with Checkpointer(f"jsonl://{tmp_path}{option}", format="json") as checkpointer:
        checkpointer.save("t", {"n": "x" * 50_000_000}, id="large")
        checkpointer.save("t", {"n": 1}, id="long", metadata={"digits": os.urandom(100_000).hex()})
        cut = checkpointer.save("t", {"n": 2}, id="cut")
        [path] = (path for path in (tmp_path / "t").iterdir() if path.name.startswith(cut.id))
        path.write_bytes(path.read_bytes()[:-1])
    with Checkpointer(f"jsonl://{tmp_path}{option}", format="json") as checkpointer:
        tracemalloc.start()
        assert [info.id for info in checkpointer.list("t")] == ["long", "large"]
        assert tracemalloc.get_traced_memory()[1] < 45_000_000
        tracemalloc.stop()


def test_gzip_halves_a_typical_state(tmp_path, state):
    """Compression saves more than half of a typical agent state."""
    plain = Checkpointer(f"jsonl://{tmp_path}/plain").save("a", state, id="x")
    Checkpointer(f"jsonl://{tmp_path}/zipped?gzip").save("a", state, id="x")
    assert (tmp_path / "zipped/a/x.jsonl.gz").stat().st_size < plain.stored_size / 2


def test_plain_and_gzip_files_share_a_directory(tmp_path):
    """Loading detects the format of each file."""
    plain, zipped = Checkpointer(f"jsonl://{tmp_path}"), Checkpointer(f"jsonl://{tmp_path}?gzip")
    plain.save("a", {"n": 1}, id="one")
    zipped.save("a", {"n": 2}, id="two")
    for checkpointer in (plain, zipped):
        assert [checkpointer.load("a", id) for id in ("one", "two")] == [{"n": 1}, {"n": 2}]
        assert len(checkpointer.list("a")) == 2


def test_compressed_files_of_earlier_versions_stay_usable(tmp_path):
    """A compressed file that is named `.jsonl`, as earlier versions did, is listed, loaded, protected against overwriting, and deleted."""
    checkpointer = Checkpointer(f"jsonl://{tmp_path}?gzip")
    checkpointer.save("a", {"n": 1}, id="x")
    (tmp_path / "a/x.jsonl.gz").rename(tmp_path / "a/x.jsonl")
    assert ([info.id for info in checkpointer.list("a")], checkpointer.load("a", "x")) == (["x"], {"n": 1})
    with pytest.raises(ConflictError, match="already has"):
        checkpointer.save("a", {"n": 2}, id="x")
    checkpointer.delete("a", "x")
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize(("first", "second"), [("", "?gzip"), ("?gzip", "")])
def test_one_id_is_one_file(tmp_path, first, second):
    """A store with the other option does not save a second checkpoint of the same ID."""
    Checkpointer(f"jsonl://{tmp_path}{first}").save("a", {"n": 1}, id="x")
    with pytest.raises(ConflictError, match="already has"):
        Checkpointer(f"jsonl://{tmp_path}{second}").save("a", {"n": 2}, id="x")


def test_other_formats_are_refused(tmp_path):
    """A jsonl store accepts only JSON, and says so."""
    with pytest.raises(ConfigError, match="plain JSON"):
        Checkpointer(f"jsonl://{tmp_path}", format="msgpack").save("a", {})
    for other in ("?zip", "?gzip#1", "?gzip&x"):
        with pytest.raises(ConfigError, match="gzip"):
            Checkpointer(f"jsonl://{tmp_path}{other}")
    with pytest.raises(ConfigError, match="%23"):
        Checkpointer(f"jsonl://{tmp_path}#1?gzip")


@pytest.mark.parametrize("zipped", [False, True])
def test_lines_of_another_tool_are_imported(tmp_path, zipped):
    """Checkpoints of another tool are imported in order, with step and status."""
    lines = "".join(json.dumps({"agent_id": "a", "step": n, "status": "paused", "memory": [n]}) + "\n\n" for n in range(3)).encode()
    path = tmp_path / "theirs.jsonl"
    path.write_bytes(gzip.compress(lines) if zipped else lines)
    checkpointer = Checkpointer("memory://")
    adopt(checkpointer, "a", path)
    assert [(info.step, info.status) for info in checkpointer.list("a")] == [(2, "paused"), (1, "paused"), (0, "paused")]
    assert checkpointer.load("a")["memory"] == [2]


def test_every_valid_line_is_imported_whatever_its_step(tmp_path):
    """A step that is not a 64-bit integer, or a file name that is not valid text, does not stop the import."""
    steps = [1, 2**63, -(2**70), 1.5, "seven", True, None, -(2**63)]
    path = tmp_path / os.fsdecode(b"theirs\xff.jsonl")
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))
    checkpointer = Checkpointer("memory://")
    infos = adopt(checkpointer, "a", path)
    assert [info.step for info in infos] == [1, None, None, None, None, None, None, -(2**63)]
    assert [checkpointer.load("a", info.id)["step"] for info in infos] == steps
    assert {info.metadata["adopted_from"] for info in checkpointer.list("a")} == {"theirs\ufffd.jsonl"}


def test_damaged_files_of_other_tools_raise(tmp_path):
    """A truncated gzip file and lines that are not JSON raise the matching error, with the number of the line."""
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b'{"a":1}\n' * 1000)[:-20])
    with pytest.raises(CompressionError):
        list(read_json_lines(path))
    path.write_bytes(b'{"a":1}\nnonsense\n')
    with pytest.raises(SerializationError, match="line 2"):
        list(read_json_lines(path))
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(SerializationError, match="line 1"):
        list(read_json_lines(path))
    with pytest.raises(StorageError, match="nowhere"):
        list(read_json_lines(tmp_path / "nowhere"))


def test_every_flip_in_a_gzip_file_of_another_tool_is_detected(tmp_path):
    """A flipped bit raises a CheckpointError, unless gzip ignores that byte."""
    lines = [{"n": n} for n in range(50)]
    raw = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())
    path = tmp_path / "x"
    for at in range(2, len(raw)):
        path.write_bytes(raw[:at] + bytes((raw[at] ^ 255,)) + raw[at + 1 :])
        try:
            assert list(read_json_lines(path)) == lines
        except CheckpointError:
            continue


def test_nan_infinity_and_byte_order_marks_are_read(tmp_path):
    """Python's json and Windows tools write these."""
    path = tmp_path / "x"
    path.write_bytes(b'\xef\xbb\xbf{"step": 1}\r\n{"loss": -Infinity}\r\n[NaN]')
    first, second, (third,) = read_json_lines(path)
    assert (first, second) == ({"step": 1}, {"loss": float("-inf")})
    assert third != third  # noqa: PLR0124 - NaN
