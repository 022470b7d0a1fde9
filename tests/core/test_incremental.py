"""Incremental checkpoints, and lazy reading of single keys."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer, compare
from ckpt_observe.core.compare import values
from ckpt_observe.core.retention import Decision
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import ConfigError, ConflictError, IntegrityError

LARGE = "x" * 5000


@pytest.fixture(params=["json", "msgpack", "arrays"])
def checkpointer(request, tmp_path):
    if request.param == "arrays":
        pytest.importorskip("numpy")
    return Checkpointer(tmp_path, format=request.param, incremental=4)


def test_unchanged_keys_are_not_written_again(checkpointer):
    """An unchanged key refers to its earlier checkpoint; the state is loaded complete and in order."""
    first = checkpointer.save("t", {"n": 1, "large": LARGE, "list": [LARGE]})
    state = {"n": 2, "large": LARGE, "list": [LARGE, 1]}
    second = checkpointer.save("t", state)
    assert second.keys["large"].base == first.id
    assert second.payload_size < first.payload_size - 4000
    loaded_state = checkpointer.load("t")
    assert loaded_state == state
    assert list(loaded_state) == list(state)


def test_references_do_not_form_chains(checkpointer):
    """After any number of saves, a checkpoint refers directly to those that hold its values, and to at most `incremental` of them."""
    for n in range(10):
        info = checkpointer.save("t", {f"key{i}": f"{LARGE}{n if i == n else 0}" for i in range(10)})
        assert len(info.bases) <= 4
        assert checkpointer.load("t", info.id)[f"key{n}"] == f"{LARGE}{n}"


@pytest.mark.parametrize("wrong", ["8", -1, 2.5, None])
def test_invalid_number_of_bases_is_refused(wrong):
    """An invalid `incremental` raises when the Checkpointer is created; otherwise every save would fail, or silently be a full one."""
    with pytest.raises(ConfigError, match="incremental"):
        Checkpointer("memory://", incremental=wrong)


def test_new_checkpointer_builds_on_the_newest(tmp_path):
    """A new Checkpointer builds on the newest checkpoint of an earlier one."""
    first = Checkpointer(tmp_path, incremental=4).save("t", {"large": LARGE, "n": 1})
    second = Checkpointer(tmp_path, incremental=4).save("t", {"large": LARGE, "n": 2})
    assert second.bases == (first.id,)


def test_lost_base_is_detected(checkpointer):
    """A missing base raises IntegrityError; a state is never loaded incomplete."""
    first = checkpointer.save("t", {"large": LARGE, "n": 1})
    checkpointer.save("t", {"large": LARGE, "n": 2})
    checkpointer.store.delete("t", first.id)
    with pytest.raises(IntegrityError) as caught:
        checkpointer.load("t")
    assert caught.value.code == "integrity.broken_base"
    with pytest.raises(IntegrityError) as caught:
        checkpointer.open("t")["large"]
    assert caught.value.code == "integrity.broken_base"


def test_replaced_base_is_detected(checkpointer):
    """A base with another value under the same id raises IntegrityError, also when a single key is read."""
    first = checkpointer.save("t", {"large": LARGE, "n": 1})
    second = checkpointer.save("t", {"large": LARGE, "n": 2})
    checkpointer.store.delete("t", first.id)
    Checkpointer(checkpointer.store).save("t", {"large": LARGE.upper(), "n": 1}, id=first.id)
    with pytest.raises(IntegrityError):
        checkpointer.load("t", second.id)
    with pytest.raises(IntegrityError):
        checkpointer.open("t", second.id)["large"]


def test_bases_stay_while_needed(tmp_path):
    """Retention keeps the bases of the checkpoints it keeps, and `delete` refuses to remove them."""
    checkpointer = Checkpointer(tmp_path, incremental=4, keep_last=2)
    first = checkpointer.save("t", {"large": LARGE, "n": 0})
    for n in range(1, 6):
        checkpointer.save("t", {"large": LARGE, "n": n})
    infos = checkpointer.list("t")
    assert len(infos) == 3
    assert infos[-1] == first
    assert checkpointer.load("t") == {"large": LARGE, "n": 5}
    with pytest.raises(ConflictError):
        checkpointer.delete("t", first.id)


def test_old_plan_removes_no_base_in_use():
    """Pruning with an outdated plan keeps the bases, direct and indirect, of checkpoints saved since."""
    checkpointer = Checkpointer("memory://", incremental=4)
    checkpointer.save("t", {"a": LARGE, "b": 0}, id="first")
    checkpointer.save("t", {"a": LARGE, "b": LARGE + "b"}, id="second")
    checkpointer.save("t", {"a": 0, "b": 0}, id="third")
    plan = [Decision(info, keep=info.id == "third", reason="") for info in checkpointer.list("t")]
    checkpointer.restore("t", "second")
    assert checkpointer.save("t", {"a": 0, "b": LARGE + "b"}, id="fourth").bases == ("second",)
    assert checkpointer.prune("t", plan) == []
    assert all(finding.good for finding in checkpointer.verify("t"))


def test_save_is_full_after_its_base_was_removed(checkpointer):
    """If another program removed the base, the next save writes everything."""
    first = checkpointer.save("t", {"large": LARGE})
    checkpointer.store.delete("t", first.id)
    assert checkpointer.save("t", {"large": LARGE}).bases == ()


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_lazy_reading_equals_load(tmp_path, state, format, compression):
    """Keys read one by one have the same values as with `load`."""
    checkpointer = Checkpointer(tmp_path, format=format, compression=compression)
    checkpointer.save("agent", state)
    lazy = checkpointer.open("agent")
    assert list(lazy) == list(state)
    assert dict(lazy) == state


def test_only_the_bytes_of_the_key_are_read(tmp_path, monkeypatch):
    """Reading one key of an uncompressed checkpoint reads only the bytes of that key."""
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("t", {"large": LARGE, "small": [1, 2]})
    lazy = checkpointer.open("t")
    monkeypatch.setattr(checkpointer.store, "get", None)
    assert lazy["small"] == [1, 2]


def test_key_lookup_reads_no_values(tmp_path, monkeypatch):
    """`in` is answered from the header."""
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("t", {"large": LARGE})
    lazy = checkpointer.open("t")
    monkeypatch.setattr(checkpointer.store, "get_range", None)
    assert "large" in lazy
    assert "small" not in lazy


def test_values_read_each_checkpoint_once(tmp_path, monkeypatch):
    """If a checkpoint has to be read completely, comparing reads it once, however many keys changed."""
    checkpointer = Checkpointer(tmp_path, compression="zstd")
    old, new = (checkpointer.save("t", {f"k{i}": n for i in range(20)}) for n in (1, 2))
    ids, get = [], checkpointer.store.get
    monkeypatch.setattr(checkpointer.store, "get", lambda *name: ids.append(name[1]) or get(*name))
    assert values(checkpointer, compare(old, new)) == {f"k{i}": (1, 2) for i in range(20)}
    assert ids == [old.id, new.id]


def test_key_in_a_compressed_base_is_read(tmp_path):
    """A key can be read from a compressed base, even if the checkpoint that refers to it is not compressed."""
    Checkpointer(tmp_path, incremental=4, compression="gzip").save("t", {"large": LARGE, "n": 1})
    checkpointer = Checkpointer(tmp_path, incremental=4)
    assert checkpointer.save("t", {"large": LARGE, "n": 2}).bases
    assert dict(checkpointer.open("t")) == {"large": LARGE, "n": 2}


def test_damaged_key_raises_when_read():
    """A flipped bit in one value fails that key and no other."""
    store = MemoryStore()
    info = Checkpointer(store).save("t", {"a": "aaaa", "b": "bbbb"})
    damaged = bytes(store.get("t", info.id)).replace(b'"aaaa"', b'"axaa"')
    store._checkpoints["t"][info.id] = info, damaged
    lazy = Checkpointer(store).open("t")
    assert lazy["b"] == "bbbb"
    with pytest.raises(IntegrityError):
        lazy["a"]


def test_save_does_not_list_the_store(tmp_path, monkeypatch):
    """An incremental save reads only its possible bases, and never lists all checkpoints."""
    Checkpointer(tmp_path).save("t", {"large": LARGE, "n": 0}, id="first")
    checkpointer = Checkpointer(tmp_path, incremental=4)
    monkeypatch.setattr(checkpointer.store, "list", None)
    for n in range(3):
        assert checkpointer.save("t", {"large": LARGE, "n": n}).bases == ("first",)


def test_forked_task_is_not_built_on_its_origin(checkpointer):
    """A checkpoint whose parent is in another task has no base there, even if both tasks have a checkpoint with the same id: it would be its own base."""
    state = {"large": LARGE, "n": 1}
    checkpointer.save("origin", state, id="step-1")
    other = Checkpointer(checkpointer.store, format=checkpointer.serializer.name, incremental=4)
    other.save("fork", {"other": LARGE}, id="step-1")
    info = other.save("fork", state, id="step-2", parent=checkpointer.list("origin")[0])
    assert info.bases == ()
    assert other.load("fork", "step-2") == state


def test_many_keys_are_read_at_once(checkpointer, monkeypatch):
    """A few keys are read one by one; many keys are read with the whole checkpoint."""
    info = checkpointer.save("t", {str(n): f"{n} {LARGE}" for n in range(20)})
    reads = []
    for name in ("get", "get_range"):
        call = getattr(type(checkpointer.store), name)
        monkeypatch.setattr(
            checkpointer.store, name, lambda *args, call=call, name=name: reads.append(name) or call(checkpointer.store, *args)
        )
    opened = checkpointer.open("t", info.id)
    assert opened.get_many(["3", "4"]) == {"3": f"3 {LARGE}", "4": f"4 {LARGE}"}
    assert reads == ["get_range", "get_range"]
    assert len(opened.get_many(list(opened))) == 20
    assert reads[2:] == ["get"]


@pytest.mark.parametrize("id", ["second", None], ids=["by id", "newest"])
def test_swapped_checkpoint_is_not_opened(id):
    """If the store returns another checkpoint than the named one, `open` and `resolve` raise IntegrityError, as `load` does."""
    store = MemoryStore()
    checkpointer = Checkpointer(store)
    checkpointer.save("t", {"n": 1}, id="first")
    second = checkpointer.save("t", {"n": 2}, id="second")
    store._checkpoints["t"]["second"] = second, store.get("t", "first")
    for read in (checkpointer.load, checkpointer.open):
        with pytest.raises(IntegrityError, match=r"'second' of 't' in .*has checkpoint 'first' of 't'"):
            read("t", id)
    with pytest.raises(IntegrityError, match=r"'second' of 't' in .*has checkpoint 'first' of 't'"):
        checkpointer.resolve("t", "latest")
