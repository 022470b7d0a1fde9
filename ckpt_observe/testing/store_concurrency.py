"""The part of the store contract about concurrent writers: threads and processes."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import ConflictError
from ckpt_observe.testing.store_harness import SAVES_PER_PROCESS, StoreHarness, save_several

PROCESSES = 8


class StoreConcurrencyContract(StoreHarness):
    """How a store handles several writers. A store that exists in one process only sets `test_processes_write_at_once = None`."""

    def test_threads_write_at_once(self, store: Store, checkpointer: Checkpointer) -> None:
        """Eight threads save for four tasks through one store; nothing is lost or mixed up."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: checkpointer.save(f"agent{n % 4}", {"n": n}, id=str(n)), range(40)))
        for n in range(40):
            assert checkpointer.load(f"agent{n % 4}", str(n)) == {"n": n}

    def test_one_of_many_gets_an_id(self, store: Store) -> None:
        """If several threads save under the same id, exactly one succeeds, and its state is stored."""

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
        """Eight processes write to one medium; every acknowledged checkpoint exists and is intact."""
        store.close()
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(PROCESSES) as pool:
            saved = pool.starmap(save_several, [(self.url(store), n) for n in range(PROCESSES)])
        with self.another(store) as reader:
            checkpointer = Checkpointer(reader)
            for n, ids in enumerate(saved):
                states = [{"writer": n, "save": save} for save in range(SAVES_PER_PROCESS)]
                assert [checkpointer.load("shared", id) for id in ids] == states
            assert len(reader.list("shared")) == PROCESSES * SAVES_PER_PROCESS
