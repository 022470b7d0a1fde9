"""The contract of a store, as tests: inherit it, give it a `store` fixture and the back doors to its medium.

`raw_read` and `raw_write` see and replace the bytes as they lie there, past the store; `another` opens the same medium as
another process would. tests/core/stores/ has one for each store of the package.
"""

from __future__ import annotations

import multiprocessing
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.format.container import read_header
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, CompatibilityError, ConflictError, IntegrityError
from ckpt_observe.testing.writing import SAVES, save_some

HOSTILE = ["../../x", "..", "a/b", "%2e", "x' OR 1=1; --", "*?[]{}:", "naïve ☃", "y" * 256, "☃" * 256, "-rf", " spaced "]
PROCESSES = 8


class StoreContract:
    """What every store must do. One that lives in a single process says so: `test_processes_write_at_once = None`."""

    def raw_read(self, store: Store, task: str, id: str) -> bytes:
        raise NotImplementedError

    def raw_write(self, store: Store, task: str, id: str, data: bytes) -> None:
        raise NotImplementedError

    def another(self, store: Store) -> Store:
        raise NotImplementedError

    @pytest.fixture
    def checkpointer(self, store: Store) -> Checkpointer:
        return Checkpointer(store)

    def test_what_is_put_lies_in_the_medium(self, store: Store, checkpointer: Checkpointer) -> None:
        """L13, G6: the bytes of a checkpoint are in the medium, header first, and `get` gives exactly them."""
        info = checkpointer.save("t", {"n": 1}, step=1)
        raw = self.raw_read(store, "t", info.id)
        assert read_header(raw) == info
        assert bytes(store.get("t", info.id)) == raw
        assert store.size("t", info.id) == len(raw) == info.stored_size
        assert bytes(store.get_range("t", info.id, 1, 12)) == raw[1:13]
        assert bytes(store.get_range("t", info.id, info.header_size + 1, 3)) == raw[info.header_size + 1 : info.header_size + 4]
        assert bytes(store.get_range("t", info.id, len(raw) - 2, 9)) == raw[-2:]
        for start, size in (len(raw), 9), (len(raw) + 1, 9), (1, 0):
            assert bytes(store.get_range("t", info.id, start, size)) == b""
        assert store.info("t", info.id) == info

    def test_promises_are_data(self, store: Store, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the store says it can do, it does: a range is read without the whole, and a query is answered in a way of its own."""
        assert store.capabilities.durability in ("nothing", "process", "machine", "server")
        assert store.capabilities.writers in ("threads", "processes", "hosts")
        assert store.capabilities.max_size is None or store.capabilities.max_size > 0
        info = checkpointer.save("t", {"n": [1, 2, 3]})
        raw = self.raw_read(store, "t", info.id)
        if store.capabilities.reads_ranges:
            monkeypatch.setattr(type(store), "get", None)
            assert bytes(store.get_range("t", info.id, info.header_size + 1, 3)) == raw[info.header_size + 1 : info.header_size + 4]
        if store.capabilities.has_index:
            assert type(store).find is not Store.find

    def test_another_opens_what_was_put(self, store: Store, checkpointer: Checkpointer) -> None:
        """A second store on the same medium sees the checkpoint."""
        checkpointer.save("t", {"n": [1, 2, 3]})
        with self.another(store) as other:
            assert Checkpointer(other).load("t") == {"n": [1, 2, 3]}

    def test_large_checkpoint_comes_back(self, checkpointer: Checkpointer) -> None:
        """Three megabytes round-trip."""
        state = {"text": "0123456789" * 300_000}
        checkpointer.save("t", state)
        assert checkpointer.load("t") == state

    def test_taken_id_is_a_conflict(self, store: Store, checkpointer: Checkpointer) -> None:
        """A checkpoint is never overwritten."""
        checkpointer.save("t", {"n": 1}, id="a")
        before = self.raw_read(store, "t", "a")
        with pytest.raises(ConflictError):
            checkpointer.save("t", {"n": 2}, id="a")
        assert self.raw_read(store, "t", "a") == before

    def test_missing_is_not_found(self, store: Store) -> None:
        """Whatever is done with a checkpoint that is not there is not_found; there is nothing to list."""
        for method in (store.get, store.delete, store.info, store.size, store.quarantine):
            with pytest.raises(CheckpointNotFoundError):
                method("t", "a")
        assert store.list("t") == []
        assert store.ids("t") == ()
        assert store.tasks() == ()

    def test_listing_is_newest_first_and_apart_by_task(self, store: Store, checkpointer: Checkpointer) -> None:
        """Tasks do not see one another; order is that of the saves, whatever the ids."""
        saved = [checkpointer.save("one", {"n": n}, id=name) for n, name in enumerate("bca")]
        other = checkpointer.save("on", {"n": 9}, id="a")
        assert store.list("one") == saved[::-1]
        assert store.list("on") == [other]
        assert sorted(store.ids("one")) == ["a", "b", "c"]
        assert store.tasks() == ("on", "one")

    def test_metadata_are_those_that_were_saved(self, store: Store, checkpointer: Checkpointer) -> None:
        """L13: neither who saved them nor who lists them changes what is kept, found and listed by changing what he holds."""
        metadata = {"lr": 1, "layers": {"sizes": [1, 2]}, "pair": (1, 2)}
        checkpointer.save("t", {"n": 1}, metadata=metadata)
        metadata["layers"]["sizes"].append(3)  # type: ignore[index]
        for infos in (store.list("t"), store.find(Query())):
            infos[0].metadata["lr"] = 2
            infos[0].metadata["layers"]["sizes"].clear()
        for infos in (store.list("t"), store.find(Query(parameters={"lr": 1}))):
            assert [info.metadata for info in infos] == [{"lr": 1, "layers": {"sizes": [1, 2]}, "pair": [1, 2]}]

    def test_deleted_is_gone_and_its_id_free(self, store: Store, checkpointer: Checkpointer) -> None:
        """After a delete nothing is left, and the id can be used again."""
        checkpointer.save("t", {"n": 1}, id="a")
        store.delete("t", "a")
        assert store.tasks() == ()
        checkpointer.save("t", {"n": 2}, id="a")
        assert checkpointer.load("t", "a") == {"n": 2}

    @pytest.mark.parametrize("name", HOSTILE)
    def test_hostile_names(self, store: Store, checkpointer: Checkpointer, name: str) -> None:
        """Names are data: they come back as given and reach nothing else."""
        checkpointer.save("t", {"n": 0}, id="bystander")
        info = checkpointer.save(name, {"n": 1}, id=name)
        assert checkpointer.load(name, name) == {"n": 1}
        assert store.list(name) == [info]
        assert store.tasks() == tuple(sorted(("t", name)))
        store.delete(name, name)
        assert checkpointer.load("t") == {"n": 0}

    def test_damage_is_noticed_and_can_be_quarantined(self, store: Store, checkpointer: Checkpointer) -> None:
        """L8: altered bytes never become a state; the checkpoint stays known until it is quarantined."""
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
    def test_damaged_newest_is_not_passed_over_in_silence(self, store: Store, checkpointer: Checkpointer, id: str) -> None:
        """L8, K7: where the newest header does not read, a load says so, or falls back and says that; no older state in silence.

        It is found by verification, and can be moved aside, also where its name tells no more than the hash of its id.
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

    @pytest.mark.parametrize("name", ["u", "n" * 256])
    def test_damaged_one_does_not_hide_the_others(self, store: Store, checkpointer: Checkpointer, name: str) -> None:
        """L8: beside empty, cut and foreign ones, the others are listed, found and verified; of a task with a hashed name too."""
        for id in "abcdef":
            checkpointer.save(name, {"x": id}, id=id)
        cut = {id: self.raw_read(store, name, id).index(b"\n") + left for id, left in (("c", 1), ("d", 3))}
        for id, damaged in {**{id: self.raw_read(store, name, id)[:end] for id, end in cut.items()}, "a": b"foreign", "b": b""}.items():
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
        """L8: a checkpoint that lies under the name of another is no checkpoint of that name, and does not hide that one was there."""
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

    def test_every_flip_and_cut_is_noticed(self, store: Store, checkpointer: Checkpointer) -> None:
        """F10: of a small checkpoint, no flipped byte and no truncation gives a state."""
        checkpointer.save("t", {"n": 0}, id="older")
        info = checkpointer.save("t", {"n": 1, "m": "x"})
        raw = self.raw_read(store, "t", info.id)
        mutations = [raw[:at] + bytes((raw[at] ^ 1 << at % 8,)) + raw[at + 1 :] for at in range(len(raw))]
        mutations += [raw[:length] for length in range(len(raw))]
        for damaged in mutations:
            self.raw_write(store, "t", info.id, damaged)
            for id in (info.id, None):  # by its id, and as the newest: nor the older state
                with pytest.raises((IntegrityError, CompatibilityError)):
                    checkpointer.load("t", id)
        self.raw_write(store, "t", info.id, raw)
        assert checkpointer.load("t", info.id) == {"n": 1, "m": "x"}

    def test_an_error_in_the_metadata_may_look_otherwise(self, checkpointer: Checkpointer) -> None:
        """What a program calls `error` in its metadata is its own: a store that looks into it takes what is no error class as well."""
        for odd in (5, ["x"], {"a": 1}):
            checkpointer.save("task", {"n": 1}, metadata={"error": {"class": odd}})
        assert len(checkpointer.list("task")) == 3
        assert checkpointer.find(Query(error_class="capacity")) == []

    def test_queries_find(self, store: Store, checkpointer: Checkpointer) -> None:
        """D4, D6: by time, task, step, status, error, parameter, tag and size; and as by looking at each header, whatever a store does."""
        for n in range(6):
            failed = {"error": {"class": "capacity", "type": "OSError"}} if n == 4 else {}
            status = "failed" if n > 3 else "ok"
            tags = ["best"] if n == 3 else []
            checkpointer.save(f"task{n % 2}", {"x": "x" * 100 * n}, step=n, status=status, tags=tags, metadata={"lr": n % 3, **failed})
        middle = checkpointer.list("task0")[1]
        for query, steps in (
            (Query(), [5, 4, 3, 2, 1, 0]),
            (Query(task="task1"), [5, 3, 1]),
            (Query(since=middle.created, status="ok"), [3, 2]),
            (Query(until=middle.created), [2, 1, 0]),
            (Query(min_step=1, max_step=3, limit=2), [3, 2]),
            (Query(error_class="capacity"), [4]),
            (Query(error_type="OSError"), [4]),
            (Query(error_type="KeyError"), []),
            (Query(parameters={"lr": 2}, limit=1), [5]),
            (Query(tag="best"), [3]),
            (Query(min_size=middle.stored_size, max_size=middle.stored_size + 150), [3, 2]),
        ):
            found = store.find(query)
            assert [info.step for info in found] == steps
            assert found == Store.find(store, query)

    def test_limit_counts_what_is_found(self, store: Store, checkpointer: Checkpointer) -> None:
        """D6: damaged checkpoints, which are left out, do not count."""
        for id in "abcdef":
            checkpointer.save("t", {"x": id}, id=id)
        for id in "def":
            self.raw_write(store, "t", id, b"!" + self.raw_read(store, "t", id)[1:])
        listed = store.list("t")
        for limit in range(len(listed) + 2):
            assert store.find(Query(limit=limit)) == listed[:limit]

    def test_put_many_keeps_all(self, store: Store, checkpointer: Checkpointer) -> None:
        """K10: a batch is kept whole, of several tasks too."""
        with checkpointer.batch() as batch:
            for n in range(5):
                batch.save(f"task{n % 2}", {"n": n}, step=n)
            assert store.tasks() == ()
        assert [info.step for info in checkpointer.list("task0")] == [4, 2, 0]
        assert checkpointer.load("task1") == {"n": 3}

    def test_threads_write_at_once(self, store: Store, checkpointer: Checkpointer) -> None:
        """K8: several agents save through one store; nothing is lost or mixed."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: checkpointer.save(f"agent{n % 4}", {"n": n}, id=str(n)), range(40)))
        for n in range(40):
            assert checkpointer.load(f"agent{n % 4}", str(n)) == {"n": n}

    def test_one_of_many_wins_an_id(self, store: Store) -> None:
        """Of several that write the same id at once exactly one succeeds, and its state is what is kept."""

        def attempt(n: int) -> int | None:
            try:
                Checkpointer(store).save("t", {"n": n}, id="same")
            except ConflictError:
                return None
            return n

        with ThreadPoolExecutor(8) as pool:
            winners = [n for n in pool.map(attempt, range(16)) if n is not None]
        assert len(winners) == 1
        assert Checkpointer(store).load("t") == {"n": winners[0]}

    def test_processes_write_at_once(self, store: Store) -> None:
        """K8: eight processes write to one medium; all that was acknowledged is there and whole."""
        store.close()
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(PROCESSES) as pool:
            saved = pool.starmap(save_some, [(self.url(store), n) for n in range(PROCESSES)])
        with self.another(store) as reader:
            checkpointer = Checkpointer(reader)
            for n, ids in enumerate(saved):
                assert [checkpointer.load("shared", id) for id in ids] == [{"writer": n, "save": save} for save in range(SAVES)]
            assert len(reader.list("shared")) == PROCESSES * SAVES

    def url(self, store: Store) -> str:
        """What another process opens this medium with; the store's location unless that hides something."""
        return store.location

    def test_random_operations_match_a_model(self, store: Store, checkpointer: Checkpointer) -> None:
        """F21: whatever the order of saves, deletes and quarantines, the store holds what a dictionary would."""
        chance = random.Random(7)  # noqa: S311 - the same run each time
        model: dict[str, dict[str, int]] = {"a": {}, "b": {}}
        for n in range(60):
            task, id = chance.choice("ab"), chance.choice("uvwxyz")
            taken = id in model[task]
            match chance.choice(["save", "save", "delete", "quarantine"]):
                case "save" if taken:
                    with pytest.raises(ConflictError):
                        checkpointer.save(task, {"n": n}, id=id)
                case "save":
                    checkpointer.save(task, {"n": n}, id=id)
                    model[task][id] = n
                case what if taken:
                    getattr(store, what)(task, id)
                    del model[task][id]
                case what:
                    with pytest.raises(CheckpointNotFoundError):
                        getattr(store, what)(task, id)
            assert [info.id for info in store.list(task)] == list(model[task])[::-1]
        assert store.tasks() == tuple(task for task, kept in model.items() if kept)
        for task, kept in model.items():
            assert {id: checkpointer.load(task, id)["n"] for id in store.ids(task)} == kept

    def test_close_twice(self, store: Store) -> None:
        """Closing is idempotent."""
        store.close()
        store.close()
