"""The contract of a store, as tests: inherit `StoreContract`, add a `store` fixture, and implement the methods of `StoreHarness`.

tests/core/stores/ has an example for each store of the package.
"""

from __future__ import annotations

import random

import pytest

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.format.container import read_header
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, ConflictError
from ckpt_observe.testing.store_concurrency import StoreConcurrencyContract
from ckpt_observe.testing.store_damage import StoreDamageContract

HOSTILE_NAMES = ["../../x", "..", "a/b", "%2e", "x' OR 1=1; --", "*?[]{}:", "naïve ☃", "y" * 256, "☃" * 256, "-rf", " spaced "]


class StoreContract(StoreDamageContract, StoreConcurrencyContract):
    """What every store must do."""

    @pytest.fixture
    def checkpointer(self, store: Store) -> Checkpointer:
        return Checkpointer(store)

    def test_put_writes_to_the_medium(self, store: Store, checkpointer: Checkpointer) -> None:
        """The medium has the bytes of the checkpoint, header first, and `get` and `get_range` return exactly these bytes."""
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

    def test_capabilities_are_true(self, store: Store, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
        """The values are valid, a store that reads ranges does not read the whole checkpoint, and one with an index overrides `find`."""
        capabilities = store.capabilities
        assert capabilities.durability in ("nothing", "process", "machine", "server")
        assert capabilities.writers in ("threads", "processes", "hosts")
        assert capabilities.max_size is None or capabilities.max_size > 0
        info = checkpointer.save("t", {"n": [1, 2, 3]})
        raw = self.raw_read(store, "t", info.id)
        if capabilities.reads_ranges:
            monkeypatch.setattr(type(store), "get", None)
            assert bytes(store.get_range("t", info.id, info.header_size + 1, 3)) == raw[info.header_size + 1 : info.header_size + 4]
        if capabilities.has_index:
            assert type(store).find is not Store.find

    def test_second_store_reads_the_same_medium(self, store: Store, checkpointer: Checkpointer) -> None:
        """Another store on the same medium loads the checkpoint."""
        checkpointer.save("t", {"n": [1, 2, 3]})
        with self.another(store) as other:
            assert Checkpointer(other).load("t") == {"n": [1, 2, 3]}

    def test_large_checkpoint_round_trips(self, checkpointer: Checkpointer) -> None:
        """A state of three megabytes is loaded as it was saved."""
        state = {"text": "0123456789" * 300_000}
        checkpointer.save("t", state)
        assert checkpointer.load("t") == state

    def test_existing_id_is_a_conflict(self, store: Store, checkpointer: Checkpointer) -> None:
        """A checkpoint is never overwritten."""
        checkpointer.save("t", {"n": 1}, id="a")
        before = self.raw_read(store, "t", "a")
        with pytest.raises(ConflictError):
            checkpointer.save("t", {"n": 2}, id="a")
        assert self.raw_read(store, "t", "a") == before

    def test_missing_checkpoint_is_not_found(self, store: Store) -> None:
        """Methods for one checkpoint raise CheckpointNotFoundError if it does not exist; listings are empty."""
        for method in (store.get, store.delete, store.info, store.size, store.quarantine):
            with pytest.raises(CheckpointNotFoundError):
                method("t", "a")
        assert store.list("t") == []
        assert store.ids("t") == ()
        assert store.tasks() == ()

    def test_list_is_newest_first_and_per_task(self, store: Store, checkpointer: Checkpointer) -> None:
        """The order is that of the saves, whatever the ids, and each task has only its own checkpoints."""
        saved = [checkpointer.save("one", {"n": n}, id=name) for n, name in enumerate("bca")]
        other = checkpointer.save("on", {"n": 9}, id="a")
        assert store.list("one") == saved[::-1]
        assert store.list("on") == [other]
        assert sorted(store.ids("one")) == ["a", "b", "c"]
        assert store.tasks() == ("on", "one")

    def test_metadata_is_copied(self, store: Store, checkpointer: Checkpointer) -> None:
        """Changing metadata after saving or listing does not change what is stored, found or listed."""
        metadata = {"lr": 1, "layers": {"sizes": [1, 2]}, "pair": (1, 2)}
        checkpointer.save("t", {"n": 1}, metadata=metadata)
        metadata["layers"]["sizes"].append(3)  # type: ignore[index]
        for infos in (store.list("t"), store.find(Query())):
            infos[0].metadata["lr"] = 2
            infos[0].metadata["layers"]["sizes"].clear()
        for infos in (store.list("t"), store.find(Query(parameters={"lr": 1}))):
            assert [info.metadata for info in infos] == [{"lr": 1, "layers": {"sizes": [1, 2]}, "pair": [1, 2]}]

    def test_deleted_id_can_be_used_again(self, store: Store, checkpointer: Checkpointer) -> None:
        """After a delete nothing remains, and the id can be used again."""
        checkpointer.save("t", {"n": 1}, id="a")
        store.delete("t", "a")
        assert store.tasks() == ()
        checkpointer.save("t", {"n": 2}, id="a")
        assert checkpointer.load("t", "a") == {"n": 2}

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_hostile_names(self, store: Store, checkpointer: Checkpointer, name: str) -> None:
        """Names are only data: they are listed as they were saved, and affect nothing else."""
        checkpointer.save("t", {"n": 0}, id="bystander")
        info = checkpointer.save(name, {"n": 1}, id=name)
        assert checkpointer.load(name, name) == {"n": 1}
        assert store.list(name) == [info]
        assert store.tasks() == tuple(sorted(("t", name)))
        store.delete(name, name)
        assert checkpointer.load("t") == {"n": 0}

    def test_any_value_under_error_in_metadata(self, checkpointer: Checkpointer) -> None:
        """A program may store anything as `error` in its metadata; a store that indexes it accepts values that are not error classes."""
        for value in (5, ["x"], {"a": 1}):
            checkpointer.save("task", {"n": 1}, metadata={"error": {"class": value}})
        assert len(checkpointer.list("task")) == 3
        assert checkpointer.find(Query(error_class="capacity")) == []

    def test_queries(self, store: Store, checkpointer: Checkpointer) -> None:
        """Finds by time, task, step, status, error, parameter, tag and size, with the same result as reading every header."""
        for n in range(6):
            error = {"error": {"class": "capacity", "type": "OSError"}} if n == 4 else {}
            status = "failed" if n > 3 else "ok"
            tags = ["best"] if n == 3 else []
            checkpointer.save(f"task{n % 2}", {"x": "x" * 100 * n}, step=n, status=status, tags=tags, metadata={"lr": n % 3, **error})
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
            matches = store.find(query)
            assert [info.step for info in matches] == steps
            assert matches == Store.find(store, query)

    def test_put_many_stores_all(self, store: Store, checkpointer: Checkpointer) -> None:
        """A batch is stored completely, even if it has several tasks."""
        with checkpointer.batch() as batch:
            for n in range(5):
                batch.save(f"task{n % 2}", {"n": n}, step=n)
            assert store.tasks() == ()
        assert [info.step for info in checkpointer.list("task0")] == [4, 2, 0]
        assert checkpointer.load("task1") == {"n": 3}

    def test_random_operations_match_a_model(self, store: Store, checkpointer: Checkpointer) -> None:
        """After any sequence of saves, deletes and quarantines the store has the content of a dictionary."""
        chance = random.Random(7)  # noqa: S311 - the same sequence each time
        model: dict[str, dict[str, int]] = {"a": {}, "b": {}}
        for n in range(60):
            task, id = chance.choice("ab"), chance.choice("uvwxyz")
            exists = id in model[task]
            match chance.choice(["save", "save", "delete", "quarantine"]):
                case "save" if exists:
                    with pytest.raises(ConflictError):
                        checkpointer.save(task, {"n": n}, id=id)
                case "save":
                    checkpointer.save(task, {"n": n}, id=id)
                    model[task][id] = n
                case method if exists:
                    getattr(store, method)(task, id)
                    del model[task][id]
                case method:
                    with pytest.raises(CheckpointNotFoundError):
                        getattr(store, method)(task, id)
            assert [info.id for info in store.list(task)] == list(model[task])[::-1]
        assert store.tasks() == tuple(task for task, states in model.items() if states)
        for task, states in model.items():
            assert {id: checkpointer.load(task, id)["n"] for id in store.ids(task)} == states

    def test_close_twice(self, store: Store) -> None:
        """Closing a closed store does nothing."""
        store.close()
        store.close()
