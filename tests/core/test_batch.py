"""Several saves in one write: what goes wrong between giving a state and writing it."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.retention import KeepTagged
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import ConflictError, UnavailableError

LARGE = "x" * 5000


@pytest.mark.parametrize("written", [0, 1, 2])
def test_batch_that_failed_is_committed_again(written):
    """K10: a batch keeps what it was given until it is saved; what a failed attempt has written already is not in its way."""

    class Flaky(MemoryStore):
        left = 1

        def put_many(self, batch):
            super().put_many(batch[:written] if self.left else batch)
            if self.left:
                self.left -= 1
                raise UnavailableError("away")

    checkpointer = Checkpointer(Flaky())
    batch = checkpointer.batch()
    for n in range(2):
        batch.save(f"task{n}", {"n": n})
    with pytest.raises(UnavailableError):
        batch.commit()
    batch.commit()
    assert [checkpointer.load(f"task{n}") for n in range(2)] == [{"n": 0}, {"n": 1}]
    batch.commit()
    assert len(checkpointer.list("task0")) == 1


def test_batch_that_failed_takes_no_id_of_another():
    """K1: what somebody else saved under the id meanwhile is a conflict, at every attempt."""
    checkpointer = Checkpointer("memory://")
    batch = checkpointer.batch()
    batch.save("t", {"n": 1}, id="taken")
    checkpointer.save("t", {"n": 2}, id="taken")
    for _ in range(2):
        with pytest.raises(ConflictError):
            batch.commit()
    assert checkpointer.load("t") == {"n": 2}


def test_batch_says_of_a_checkpoint_what_a_save_does():
    """K5: metadata, tags and the parent can be said in a batch too, so that retention by tag holds for it."""
    checkpointer = Checkpointer("memory://", retention=KeepTagged("best"))
    origin = checkpointer.save("other", {})
    with checkpointer.batch() as batch:
        batch.save("t", {"n": 1}, id="best", tags=["best"], metadata={"loss": 0.5}, parent=origin)
        batch.save("t", {"n": 2}, id="last")
        batch.save("t", {"n": 3}, id="newest")
    newest, best = checkpointer.list("t")
    assert (newest.id, newest.parent, best.id, best.metadata, best.parent_task) == ("newest", "last", "best", {"loss": 0.5}, "other")


def test_base_removed_before_a_batch_ends_makes_it_whole():
    """K10: a checkpoint of a batch is built on what is there when it is written; what went since it was given is written again."""
    checkpointer = Checkpointer("memory://", incremental=4)
    checkpointer.save("t", {"large": LARGE, "n": 0}, id="base")
    with checkpointer.batch() as batch:
        assert batch.save("t", {"large": LARGE, "n": 1}, id="mine").bases == ("base",)
        checkpointer.delete("t", "base")
    assert checkpointer.load("t", "mine") == {"large": LARGE, "n": 1}
