"""The part of the store contract about damage: altered bytes never become a state, and never hide other checkpoints."""

from __future__ import annotations

import pytest

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, CompatibilityError, IntegrityError
from ckpt_observe.testing.store_harness import StoreHarness


class StoreDamageContract(StoreHarness):
    """How a store handles checkpoints whose bytes were altered, truncated or swapped."""

    def test_damage_is_detected_and_can_be_quarantined(self, store: Store, checkpointer: Checkpointer) -> None:
        """Altered bytes never become a state. The id stays listed until the checkpoint is quarantined."""
        info = checkpointer.save("t", {"n": 1})
        raw = self.raw_read(store, "t", info.id)
        self.raw_write(store, "t", info.id, raw[:-2] + b"2}")
        with pytest.raises(IntegrityError):
            checkpointer.load("t", info.id)
        self.raw_write(store, "t", info.id, b"!" + raw[1:])
        with pytest.raises(IntegrityError):
            checkpointer.load("t", info.id)
        assert store.ids("t") == (info.id,)
        store.quarantine("t", info.id)
        assert store.ids("t") == ()
        assert store.list("t") == []
        with pytest.raises(CheckpointNotFoundError):
            store.get("t", info.id)

    @pytest.mark.parametrize("id", ["newest", "n" * 256], ids=["plain", "too long for a file name"])
    def test_damaged_newest_is_never_silently_skipped(self, store: Store, checkpointer: Checkpointer, id: str) -> None:
        """If the newest header is damaged, a load raises, or falls back and reports it; it never silently returns an older state.

        Verification finds the checkpoint and can quarantine it, even if its file name only has the hash of its id.
        """
        checkpointer.save("t", {"n": 1}, id="older")
        checkpointer.save("t", {"n": 2}, id=id)
        self.raw_write(store, "t", id, b"!" + self.raw_read(store, "t", id)[1:])
        [newest] = set(store.ids("t")) - {"older"}
        assert store.newest("t") == newest
        assert newest == id or len(id) > 200
        with pytest.raises(IntegrityError):
            checkpointer.load("t")
        with pytest.raises(IntegrityError):
            checkpointer.open("t")
        lenient = Checkpointer(store, fallback=True)
        assert lenient.restore("t").state == {"n": 1}
        assert lenient.restore("t").skipped == (newest,)
        assert lenient.open("t")["n"] == 1
        assert store.newest("nothing") is None
        findings = checkpointer.verify("t", quarantine=True)
        assert {(finding.id, finding.good, finding.quarantined) for finding in findings} == {("older", True, False), (newest, False, True)}
        assert checkpointer.load("t") == {"n": 1}

    @pytest.mark.parametrize("damage", ["header", "payload", "end", "everything"])
    def test_damaged_checkpoint_is_named(self, store: Store, checkpointer: Checkpointer, damage: str) -> None:
        """Whatever part of the newest checkpoint is damaged, the error of a load has its id, its task, and what to do about it."""
        checkpointer.save("run", {"n": 0}, id="older")
        checkpointer.save("run", {"n": 1}, id="newest")
        raw = self.raw_read(store, "run", "newest")
        damaged = {"header": b"!" + raw[1:], "payload": raw[:-2] + b"2}", "end": raw[:-3], "everything": b""}[damage]
        self.raw_write(store, "run", "newest", damaged)
        for read in (checkpointer.load, checkpointer.restore, lambda *name: dict(checkpointer.open(*name))):
            for id in (None, "newest"):
                with pytest.raises(IntegrityError, match=r"'newest' of 'run'.*fallback=True.*verify\(quarantine=True\)") as caught:
                    read("run", id)
                assert caught.value.checkpoint_id == "newest"

    def test_task_whose_checkpoints_are_all_damaged(self, store: Store, checkpointer: Checkpointer) -> None:
        """With fallback, a load that finds only damaged checkpoints reports that, their number and the newest; not that none exists."""
        for id in "ab":
            checkpointer.save("t", {"x": id}, id=id)
            self.raw_write(store, "t", id, self.raw_read(store, "t", id)[:-2] + b"!}")
        with pytest.raises(IntegrityError, match=r"all 2 checkpoints of 't' .*the newest, 'b'") as caught:
            Checkpointer(store, fallback=True).load("t")
        assert (caught.value.checkpoint_id, caught.value.damaged_count) == ("b", 2)

    @pytest.mark.parametrize("name", ["u", "n" * 256])
    def test_damaged_checkpoint_does_not_hide_the_rest(self, store: Store, checkpointer: Checkpointer, name: str) -> None:
        """Beside empty, truncated and foreign data, intact ones are listed, found and verified. Also if the task's name is hashed."""
        for id in "abcdef":
            checkpointer.save(name, {"x": id}, id=id)
        ends = {id: self.raw_read(store, name, id).index(b"\n") + extra for id, extra in (("c", 1), ("d", 3))}
        truncated = {id: self.raw_read(store, name, id)[:end] for id, end in ends.items()}
        for id, damaged in {**truncated, "a": b"foreign", "b": b""}.items():
            self.raw_write(store, name, id, damaged)
        listed = {info.id for info in store.list(name)}
        assert {"e", "f"} <= listed
        assert store.tasks() == (name,)
        assert {info.id for info in checkpointer.find(Query())} == listed
        assert {finding.id for finding in checkpointer.verify() if finding.good} == {"e", "f"}
        for id in "abcd":
            with pytest.raises(IntegrityError):
                checkpointer.load(name, id)
            with pytest.raises(IntegrityError):
                dict(checkpointer.open(name, id))

    def test_swapped_bytes_are_damage(self, store: Store, checkpointer: Checkpointer) -> None:
        """A checkpoint stored under the id of another counts as damage of that id, and does not hide that the id exists."""
        for task, id in ("t", "a"), ("t", "b"), ("t", "c"), ("u", "c"):
            checkpointer.save(task, {"x": id}, id=id)
        self.raw_write(store, "t", "c", self.raw_read(store, "t", "a"))
        self.raw_write(store, "u", "c", self.raw_read(store, "t", "b"))
        assert sorted(store.ids("t")) == ["a", "b", "c"]
        assert len(listed := [info.id for info in store.list("t")]) == len(set(listed))
        assert all(info.task == "u" for info in store.list("u"))
        assert store.newest("t") == store.newest("u") == "c"
        with pytest.raises(IntegrityError):
            checkpointer.load("t")
        restored = Checkpointer(store, fallback=True).restore("t")
        assert (restored.state, restored.skipped) == ({"x": "b"}, ("c",))

    def test_every_flip_and_truncation_is_detected(self, store: Store, checkpointer: Checkpointer) -> None:
        """No flipped bit and no truncation of a small checkpoint yields a state."""
        checkpointer.save("t", {"n": 0}, id="older")
        info = checkpointer.save("t", {"n": 1, "m": "x"})
        raw = self.raw_read(store, "t", info.id)
        mutations = [raw[:at] + bytes((raw[at] ^ 1 << at % 8,)) + raw[at + 1 :] for at in range(len(raw))]
        mutations += [raw[:length] for length in range(len(raw))]
        for damaged in mutations:
            self.raw_write(store, "t", info.id, damaged)
            for id in (info.id, None):  # by its id, and as the newest: the older state must not be returned either
                with pytest.raises((IntegrityError, CompatibilityError)):
                    checkpointer.load("t", id)
        self.raw_write(store, "t", info.id, raw)
        assert checkpointer.load("t", info.id) == {"n": 1, "m": "x"}

    def test_limit_counts_intact_checkpoints(self, store: Store, checkpointer: Checkpointer) -> None:
        """Damaged checkpoints, which a query omits, do not count towards its limit."""
        for id in "abcdef":
            checkpointer.save("t", {"x": id}, id=id)
        for id in "def":
            self.raw_write(store, "t", id, b"!" + self.raw_read(store, "t", id)[1:])
        listed = store.list("t")
        for limit in range(len(listed) + 2):
            assert store.find(Query(limit=limit)) == listed[:limit]
