"""The memory store: the contract."""

from __future__ import annotations

import pytest

from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.testing.stores import StoreContract


class TestMemoryStore(StoreContract):
    test_processes_write_at_once = None  # exists in one process only

    @pytest.fixture
    def store(self, request):
        return MemoryStore(f"memory://{request.node.name}-{id(request)}")

    def raw_read(self, store, task, id):
        return store._checkpoints[task][id][1]

    def raw_write(self, store, task, id, data):
        store._checkpoints[task][id] = store._checkpoints[task][id][0], data

    def another(self, store):
        return MemoryStore(store.location)

    def test_quarantine_loses_no_bytes(self, store, checkpointer):
        """The bytes of a quarantined checkpoint are still available."""
        info = checkpointer.save("t", {"n": 1})
        data = store.get("t", info.id)
        store.quarantine("t", info.id)
        assert store.quarantined == [("t", info.id, data)]

    def test_unnamed_stores_are_separate(self):
        """`memory://` is a new store each time."""
        assert MemoryStore()._checkpoints is not MemoryStore()._checkpoints

    # This store keeps the infos separately from the bytes, so a damaged header does not affect the listing.
    def test_damage_is_detected_and_can_be_quarantined(self, store, checkpointer):
        """Altered bytes never become a state."""
        info = checkpointer.save("t", {"n": 1})
        self.raw_write(store, "t", info.id, self.raw_read(store, "t", info.id)[:-2] + b"2}")
        assert not checkpointer.verify("t", quarantine=True)[0].good
        assert store.ids("t") == ()
