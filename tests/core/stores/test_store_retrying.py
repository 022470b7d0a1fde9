"""The retrying store."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer
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
