"""Several saves in one write, and failures between `save` and `commit`."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.retention import KeepTagged
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import ConflictError, UnavailableError

LARGE = "x" * 5000


@pytest.mark.parametrize("written_count", [0, 1, 2])
def test_failed_batch_can_be_committed_again(written_count):
    """A batch keeps its checkpoints until they are saved; those that a failed attempt already wrote do not conflict."""

    class FlakyStore(MemoryStore):
        failures = 1

        def put_many(self, batch):
            super().put_many(batch[:written_count] if self.failures else batch)
            if self.failures:
                self.failures -= 1
                raise UnavailableError("server down")

    checkpointer = Checkpointer(FlakyStore())
    batch = checkpointer.batch()
    for n in range(2):
        batch.save(f"task{n}", {"n": n})
    with pytest.raises(UnavailableError):
        batch.commit()
    batch.commit()
    assert [checkpointer.load(f"task{n}") for n in range(2)] == [{"n": 0}, {"n": 1}]
    batch.commit()
    assert len(checkpointer.list("task0")) == 1


def test_batch_does_not_overwrite_an_existing_id():
    """If another writer used the id in the meantime, every commit raises ConflictError."""
    checkpointer = Checkpointer("memory://")
    batch = checkpointer.batch()
    batch.save("t", {"n": 1}, id="taken")
    checkpointer.save("t", {"n": 2}, id="taken")
    for _ in range(2):
        with pytest.raises(ConflictError):
            batch.commit()
    assert checkpointer.load("t") == {"n": 2}


def test_batch_accepts_metadata_tags_and_parent():
    """A batch accepts metadata, tags and parent like `save`, so that retention by tag applies."""
    checkpointer = Checkpointer("memory://", retention=KeepTagged("best"))
    origin = checkpointer.save("other", {})
    with checkpointer.batch() as batch:
        batch.save("t", {"n": 1}, id="best", tags=["best"], metadata={"loss": 0.5}, parent=origin)
        batch.save("t", {"n": 2}, id="last")
        batch.save("t", {"n": 3}, id="newest")
    newest, best = checkpointer.list("t")
    assert (newest.id, newest.parent, best.id, best.metadata, best.parent_task) == ("newest", "last", "best", {"loss": 0.5}, "other")


def test_base_removed_before_the_commit():
    """If the base of an incremental checkpoint is removed before the commit, the checkpoint is written in full."""
    checkpointer = Checkpointer("memory://", incremental=4)
    checkpointer.save("t", {"large": LARGE, "n": 0}, id="base")
    with checkpointer.batch() as batch:
        assert batch.save("t", {"large": LARGE, "n": 1}, id="incremental").bases == ("base",)
        checkpointer.delete("t", "base")
    assert checkpointer.load("t", "incremental") == {"large": LARGE, "n": 1}
