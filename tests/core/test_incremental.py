"""Incremental checkpoints, and states read key by key."""

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
    """K10: a key whose value is the same is pointed to; the state comes back whole, in its order."""
    first = checkpointer.save("t", {"n": 1, "large": LARGE, "list": [LARGE]})
    state = {"n": 2, "large": LARGE, "list": [LARGE, 1]}
    second = checkpointer.save("t", state)
    assert second.keys["large"].base == first.id
    assert second.payload_size < first.payload_size - 4000
    loaded = checkpointer.load("t")
    assert loaded == state
    assert list(loaded) == list(state)


def test_no_chain_grows(checkpointer):
    """K10: however many saves, a checkpoint points straight to who holds the value, and to no more than allowed."""
    for n in range(10):
        info = checkpointer.save("t", {f"key{i}": f"{LARGE}{n if i == n else 0}" for i in range(10)})
        assert len(info.bases) <= 4
        assert checkpointer.load("t", info.id)[f"key{n}"] == f"{LARGE}{n}"


@pytest.mark.parametrize("wrong", ["8", -1, 2.5, None])
def test_impossible_number_of_bases_is_refused(wrong):
    """When the Checkpointer is made: every save would fail, or be whole in silence."""
    with pytest.raises(ConfigError, match="incremental"):
        Checkpointer("memory://", incremental=wrong)


def test_another_process_goes_on_from_the_newest(tmp_path):
    """A new Checkpointer builds on what an earlier one left."""
    first = Checkpointer(tmp_path, incremental=4).save("t", {"large": LARGE, "n": 1})
    second = Checkpointer(tmp_path, incremental=4).save("t", {"large": LARGE, "n": 2})
    assert second.bases == (first.id,)


def test_lost_base_is_detected(checkpointer):
    """K10: a base that is gone is an integrity error, never a state with a hole."""
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
    """K10: a base with another value under the same id is an integrity error, also key by key."""
    first = checkpointer.save("t", {"large": LARGE, "n": 1})
    second = checkpointer.save("t", {"large": LARGE, "n": 2})
    checkpointer.store.delete("t", first.id)
    Checkpointer(checkpointer.store).save("t", {"large": LARGE.upper(), "n": 1}, id=first.id)
    with pytest.raises(IntegrityError):
        checkpointer.load("t", second.id)
    with pytest.raises(IntegrityError):
        checkpointer.open("t", second.id)["large"]


def test_bases_stay_while_needed(tmp_path):
    """K5 with K10: retention keeps what a kept checkpoint is built on, and delete refuses it."""
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
    """K5 with K10: what a checkpoint saved since the plan was made is built on stays, like what `delete` refuses; so does what that is built on."""
    checkpointer = Checkpointer("memory://", incremental=4)
    checkpointer.save("t", {"a": LARGE, "b": 0}, id="first")
    checkpointer.save("t", {"a": LARGE, "b": LARGE + "b"}, id="second")
    checkpointer.save("t", {"a": 0, "b": 0}, id="third")
    plan = [Decision(info, keep=info.id == "third", reason="") for info in checkpointer.list("t")]
    checkpointer.restore("t", "second")
    assert checkpointer.save("t", {"a": 0, "b": LARGE + "b"}, id="fourth").bases == ("second",)
    assert checkpointer.prune("t", plan) == []
    assert all(finding.good for finding in checkpointer.verify("t"))


def test_removed_base_makes_the_next_save_whole(checkpointer):
    """A base removed behind our back is noticed at the next save, which then writes everything."""
    first = checkpointer.save("t", {"large": LARGE})
    checkpointer.store.delete("t", first.id)
    assert checkpointer.save("t", {"large": LARGE}).bases == ()


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_keys_are_read_one_by_one(tmp_path, state, format, compression):
    """K10: lazy loading gives the same values as a load."""
    checkpointer = Checkpointer(tmp_path, format=format, compression=compression)
    checkpointer.save("agent", state)
    lazy = checkpointer.open("agent")
    assert list(lazy) == list(state)
    assert dict(lazy) == state


def test_only_the_bytes_of_the_key_are_read(tmp_path, monkeypatch):
    """K10: of an uncompressed checkpoint nothing but that key is read."""
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("t", {"large": LARGE, "small": [1, 2]})
    lazy = checkpointer.open("t")
    monkeypatch.setattr(checkpointer.store, "get", None)
    assert lazy["small"] == [1, 2]


def test_asking_whether_a_key_is_there_reads_nothing(tmp_path, monkeypatch):
    """K10: the header knows the keys."""
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("t", {"large": LARGE})
    lazy = checkpointer.open("t")
    monkeypatch.setattr(checkpointer.store, "get_range", None)
    assert "large" in lazy
    assert "small" not in lazy


def test_values_read_each_checkpoint_once(tmp_path, monkeypatch):
    """D4: where a checkpoint has to be read whole, it is read once, however many keys have changed."""
    checkpointer = Checkpointer(tmp_path, compression="zstd")
    old, new = (checkpointer.save("t", {f"k{i}": n for i in range(20)}) for n in (1, 2))
    read, get = [], checkpointer.store.get
    monkeypatch.setattr(checkpointer.store, "get", lambda *name: read.append(name[1]) or get(*name))
    assert values(checkpointer, compare(old, new)) == {f"k{i}": (1, 2) for i in range(20)}
    assert read == [old.id, new.id]


def test_key_in_a_compressed_base_is_read(tmp_path):
    """K10: a key may lie in an earlier checkpoint that was compressed, though the one that points to it is not."""
    Checkpointer(tmp_path, incremental=4, compression="gzip").save("t", {"large": LARGE, "n": 1})
    checkpointer = Checkpointer(tmp_path, incremental=4)
    assert checkpointer.save("t", {"large": LARGE, "n": 2}).bases
    assert dict(checkpointer.open("t")) == {"large": LARGE, "n": 2}


def test_damaged_key_is_noticed_when_read():
    """A flipped bit inside one key's value fails that key, and no other."""
    store = MemoryStore()
    info = Checkpointer(store).save("t", {"a": "aaaa", "b": "bbbb"})
    damaged = bytes(store.get("t", info.id)).replace(b'"aaaa"', b'"axaa"')
    store._checkpoints["t"][info.id] = info, damaged
    lazy = Checkpointer(store).open("t")
    assert lazy["b"] == "bbbb"
    with pytest.raises(IntegrityError):
        lazy["a"]


def test_cost_of_a_save_does_not_grow_with_what_is_kept(tmp_path, monkeypatch):
    """K10: an incremental save asks only for the few checkpoints it may be built on, not for all there are."""
    Checkpointer(tmp_path).save("t", {"large": LARGE, "n": 0}, id="first")
    checkpointer = Checkpointer(tmp_path, incremental=4)
    monkeypatch.setattr(checkpointer.store, "list", None)
    for n in range(3):
        assert checkpointer.save("t", {"large": LARGE, "n": n}).bases == ("first",)


def test_forked_task_is_not_built_on_its_origin(checkpointer):
    """K10: a fork stands alone, also where both tasks have a checkpoint of the same id: it was built on itself, and never loaded again."""
    state = {"large": LARGE, "n": 1}
    checkpointer.save("origin", state, id="step-1")
    other = Checkpointer(checkpointer.store, format=checkpointer.serializer.name, incremental=4)
    other.save("fork", {"other": LARGE}, id="step-1")
    info = other.save("fork", state, id="step-2", parent=checkpointer.list("origin")[0])
    assert info.bases == ()
    assert other.load("fork", "step-2") == state


def test_most_keys_are_read_with_the_whole(checkpointer, monkeypatch):
    """K10: the values of many keys are read at once, of few each alone."""
    info = checkpointer.save("t", {str(n): f"{n} {LARGE}" for n in range(20)})
    reads = []
    for name in ("get", "get_range"):
        call = getattr(type(checkpointer.store), name)
        monkeypatch.setattr(
            checkpointer.store, name, lambda *given, call=call, name=name: reads.append(name) or call(checkpointer.store, *given)
        )
    opened = checkpointer.open("t", info.id)
    assert opened.get_many(["3", "4"]) == {"3": f"3 {LARGE}", "4": f"4 {LARGE}"}
    assert reads == ["get_range", "get_range"]
    assert len(opened.get_many(list(opened))) == 20
    assert reads[2:] == ["get"]


@pytest.mark.parametrize("id", ["second", None], ids=["by id", "newest"])
def test_another_checkpoint_in_its_place_is_not_opened(id):
    """K7: a header that is another checkpoint's is as much of an error to `open` and `resolve` as it is to `load`."""
    store = MemoryStore()
    checkpointer = Checkpointer(store)
    checkpointer.save("t", {"n": 1}, id="first")
    second = checkpointer.save("t", {"n": 2}, id="second")
    store._checkpoints["t"]["second"] = second, store.get("t", "first")
    for read in (checkpointer.load, checkpointer.open):
        with pytest.raises(IntegrityError, match="'first' of 't' in the place of 'second'"):
            read("t", id)
    with pytest.raises(IntegrityError, match="'first' of 't' in the place of 'second'"):
        checkpointer.resolve("t", "latest")
