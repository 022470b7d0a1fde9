"""Checkpoints of earlier versions stay readable. The files are never regenerated: a new version adds its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.compare import compare

STATE = {"step": 3, "words": ["a", "b", "c"] * 5, "pair": (1, "two"), "nothing": None}
LONG_STATE = {**STATE, "text": "unchanged words " * 10}
TRACEPARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
GOLDEN = Path(__file__).with_name("golden")


def check_header(info):
    version = info.version
    assert (info.step, info.status, info.tags) == (3, "paused", ("kept",))
    assert info.metadata == {"by": f"version {version}"}
    assert info.id.startswith((f"v{version}-", "2026"))


@pytest.mark.parametrize("id", ["v1-json", "v1-json-gzip", "v1-msgpack-zstd", "v2-json", "v2-json-gzip", "v2-msgpack-zstd"])
def test_old_checkpoints_stay_readable(id):
    """A checkpoint of an earlier version is loaded with the same state and header, whatever the settings for new checkpoints."""
    restored = Checkpointer(GOLDEN).restore("golden", id)
    assert restored.state == STATE
    assert not restored.altered
    check_header(restored.info)
    assert Checkpointer(GOLDEN).open("golden", id)["words"] == STATE["words"]


@pytest.mark.parametrize("id", ["v1-arrays", "v1-arrays-by-key", "v2-arrays"])
def test_old_arrays_stay_readable(id):
    """Arrays of an earlier version are loaded as a whole and by key."""
    numpy = pytest.importorskip("numpy")
    state = Checkpointer(GOLDEN).load("golden", id)
    assert numpy.array_equal(Checkpointer(GOLDEN).open("golden", id)["a"], state["a"])
    assert numpy.array_equal(state["a"], numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
    assert state["a"].dtype == numpy.float32


def test_all_codecs_are_listed_together():
    """One directory may contain checkpoints of all codecs."""
    assert {info.codec for info in Checkpointer(GOLDEN).list("golden")} == {"none", "gzip", "zstd"}


@pytest.mark.parametrize("id", ["v1-incremental", "v2-incremental"])
def test_old_incremental_checkpoints_stay_readable(id):
    """An incremental checkpoint of an earlier version is loaded with the key from its base, and has the trace of its save."""
    restored = Checkpointer(GOLDEN).restore("golden-incremental", id)
    assert restored.state == LONG_STATE
    assert restored.info.bases == (f"{id[:2]}-base",)
    assert restored.info.context == {"traceparent": TRACEPARENT}
    check_header(restored.info)


@pytest.mark.parametrize("id", ["v1-encrypted", "v2-encrypted"])
def test_old_encrypted_checkpoints_stay_readable(id):
    """An encrypted checkpoint of an earlier version is loaded with its key."""
    ciphers = pytest.importorskip("ckpt_observe.core.ciphers")
    pytest.importorskip("cryptography")
    restored = Checkpointer(GOLDEN, encryption=ciphers.AeadCipher(b"k" * 32, key_id="k1")).restore("golden-encrypted", id)
    assert restored.state == STATE
    check_header(restored.info)


@pytest.mark.parametrize("id", ["v1-plain", "v1-zipped", "v2-plain", "v2-zipped"])
def test_old_json_lines_stay_readable(id):
    """JSON Lines of an earlier version are loaded, compressed or not."""
    restored = Checkpointer(f"jsonl://{GOLDEN}").restore("golden-jsonl", id)
    assert restored.state == STATE
    check_header(restored.info)


def test_ids_that_contain_the_time():
    """Both versions have the time of a checkpoint, although version 2 does not repeat it if the id contains it."""
    infos = Checkpointer(GOLDEN).list("golden-ids")
    assert [info.version for info in infos] == [2, 1]
    for info in infos:
        check_header(info)
        assert info.id.startswith(info.created.strftime("%Y%m%dT%H%M%S.%f"))


def test_versions_are_compared_by_key():
    """Two checkpoints of different versions with equal values have no changed key, small or large."""
    checkpointer = Checkpointer(GOLDEN)
    for old, new in (("v1-base", "v2-incremental"), ("v2-base", "v1-incremental")):
        difference = compare(*(checkpointer.restore("golden-incremental", id).info for id in (old, new)))
        assert difference.changed == ("step",)
        assert set(difference.unchanged) == LONG_STATE.keys() - {"step"}


def test_new_checkpoint_builds_on_an_old_one(tmp_path):
    """After an upgrade, an incremental save refers to unchanged keys of a checkpoint of version 1."""
    task = tmp_path / "golden-incremental"
    task.mkdir()
    (task / "v1-base.ckpt").write_bytes((GOLDEN / "golden-incremental" / "v1-base.ckpt").read_bytes())
    checkpointer = Checkpointer(tmp_path, incremental=4)
    info = checkpointer.save("golden-incremental", LONG_STATE)
    assert (info.version, info.bases) == (2, ("v1-base",))
    assert checkpointer.load("golden-incremental") == LONG_STATE
