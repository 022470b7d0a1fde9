"""The retrying store."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores import sqlite
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.core.stores.retrying import RetryingStore, RetryPolicy
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, ConflictError, UnavailableError
from ckpt_observe.testing.stores import StoreContract


class Flaky(MemoryStore):
    """Fails the next calls of a method, before or after the work is done."""

    def __init__(self, url="memory://"):
        super().__init__(url)
        self.failures = []
        self.answer_lost = False

    def put(self, info, blob):
        if self.answer_lost and self.failures:
            super().put(info, blob)
        if self.failures:
            raise self.failures.pop()
        super().put(info, blob)

    def delete(self, task, id):
        super().delete(task, id)
        if self.failures:
            raise self.failures.pop()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def store(waits):
    return RetryingStore(Flaky(), RetryPolicy(attempts=4, first_delay=1, max_delay=3, sleep=waits.append))


class TestRetryingStore(StoreContract):
    test_processes_write_at_once = None  # exists in one process only

    @pytest.fixture
    def store(self, request):
        return RetryingStore(MemoryStore(f"memory://{request.node.name}-{id(request)}"))

    def raw_read(self, store, task, id):
        return store.inner._checkpoints[task][id][1]

    def raw_write(self, store, task, id, data):
        store.inner._checkpoints[task][id] = store.inner._checkpoints[task][id][0], data

    def another(self, store):
        return RetryingStore(MemoryStore(store.location))

    def test_damage_is_detected_and_can_be_quarantined(self, store, checkpointer):
        """As in the memory store, the listing does not depend on the bytes."""
        info = checkpointer.save("t", {"n": 1})
        store.quarantine("t", info.id)
        assert store.ids("t") == ()


def test_transient_errors_are_retried(store, waits):
    """Retryable errors are retried, with growing delays up to a limit."""
    store.inner.failures = [UnavailableError("down")] * 3
    Checkpointer(store).save("t", {"n": 1})
    assert Checkpointer(store).load("t") == {"n": 1}
    assert [low <= wait <= 2 * low for wait, low in zip(waits, (0.5, 1, 1.5), strict=True)] == [True] * 3


def test_last_error_is_raised(store, waits):
    """After the last attempt the error itself is raised, with the number of attempts."""
    store.inner.failures = [UnavailableError("down")] * 9
    with pytest.raises(UnavailableError) as caught:
        Checkpointer(store).save("t", {"n": 1})
    assert caught.value.recovery == "tried 4 times"
    assert len(waits) == 3


def test_permanent_errors_are_not_retried(store, waits):
    """An error such as a full disk is not retried."""
    store.inner.failures = [CapacityError("full")]
    with pytest.raises(CapacityError):
        Checkpointer(store).save("t", {"n": 1})
    assert waits == []


def test_lost_answer_is_not_a_conflict(store):
    """A put that worked although its answer was lost is not reported as a conflict with itself; a real conflict is."""
    store.inner.failures, store.inner.answer_lost = [UnavailableError("answer lost")], True
    checkpointer = Checkpointer(store)
    checkpointer.save("t", {"n": 1}, id="a")
    assert checkpointer.load("t", "a") == {"n": 1}
    with pytest.raises(ConflictError):
        checkpointer.save("t", {"n": 2}, id="a")


def test_lost_answer_of_a_delete(store):
    """A delete that worked although its answer was lost succeeds; deleting a missing checkpoint raises."""
    checkpointer = Checkpointer(store)
    checkpointer.save("t", {"n": 1}, id="a")
    store.inner.failures = [UnavailableError("answer lost")]
    store.delete("t", "a")
    with pytest.raises(CheckpointNotFoundError):
        store.delete("t", "a")


def test_repeated_lock_is_not_taken_for_the_checkpoint(tmp_path, monkeypatch):
    """If another program holds the lock of a database during two attempts, the third one saves; before that, nothing is stored."""
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.0)
    with Checkpointer(f"sqlite://{tmp_path}/store.db") as checkpointer:
        checkpointer.save("t", {"n": 0})
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waits = []
        policy = RetryPolicy(sleep=lambda seconds: (waits.append(seconds), len(waits) == 2 and other.execute("ROLLBACK")))
        with Checkpointer(RetryingStore(sqlite.SqliteStore(f"sqlite://{tmp_path}/store.db"), policy)) as checkpointer:
            checkpointer.save("t", {"n": 1}, id="a")
            assert checkpointer.load("t", "a") == {"n": 1}
    assert len(waits) == 2


def test_lock_that_is_never_released_is_reported(store):
    """After the last attempt, a lock is reported as a lock that can be retried, and not as a missing checkpoint."""
    store.inner.failures = [ConflictError("locked", code="conflict.locked", retryable=True) for _ in range(9)]
    with pytest.raises(ConflictError) as caught:
        Checkpointer(store).save("t", {"n": 1})
    assert (caught.value.code, caught.value.retryable, caught.value.recovery) == ("conflict.locked", True, "tried 4 times")


def test_other_content_under_the_id_is_a_conflict(store):
    """If a retry finds another state under this id, or one that is removed meanwhile, nothing of ours is stored: it is a conflict."""
    checkpointer = Checkpointer(store)
    Checkpointer(store.inner).save("t", {"n": 1}, id="a")
    store.inner.failures = [UnavailableError("down")]
    with pytest.raises(ConflictError):
        checkpointer.save("t", {"n": 2}, id="a")
    store.inner.failures = [ConflictError("already has a checkpoint"), UnavailableError("down")]
    with pytest.raises(ConflictError):
        checkpointer.save("t", {"n": 2}, id="b")
