"""Errors of the core: what happened, which checkpoint, what it means for the task, and what to do."""

from __future__ import annotations

import errno
import os

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import (
    CapacityError,
    CheckpointError,
    ConflictError,
    DeadlineError,
    IntegrityError,
    SerializationError,
    StorageError,
    UnavailableError,
)
from ckpt_observe.support.advice import ADVICE

NOT_SAVED = "this checkpoint was not saved; the one before it is intact"
UNCLEAR = "it is not known whether this checkpoint was saved; the one before it is intact"
NOT_LOADED = "nothing was loaded; the stored checkpoints are unchanged"


class FailingStore(MemoryStore):
    """Raises `error` in every method that writes or reads a checkpoint, once it is set."""

    error = None

    def put(self, info, blob):
        self._fail()
        super().put(info, blob)

    def get(self, task, id):
        self._fail()
        return super().get(task, id)

    def delete(self, task, id):
        self._fail()
        super().delete(task, id)

    def _fail(self):
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        (StorageError, NOT_SAVED),
        (CapacityError, NOT_SAVED),
        (ConflictError, NOT_SAVED),
        (UnavailableError, UNCLEAR),
        (DeadlineError, UNCLEAR),
    ],
)
def test_impact_fits_the_operation(kind, saved):
    """The same error means something else for a save, a load, a removal and a batch. A lost answer of a server leaves it open."""
    store = FailingStore()
    checkpointer = Checkpointer(store)
    checkpointer.save("t", {}, id="a")
    batch = checkpointer.batch()
    batch.save("t", {})

    def impact(call, *arguments):
        store.error = kind("broken")
        with pytest.raises(kind) as caught:
            call(*arguments)
        return caught.value.impact

    assert impact(checkpointer.save, "t", {}) == saved
    assert impact(checkpointer.load, "t") == impact(checkpointer.restore, "t", "a") == NOT_LOADED
    assert "removed" in impact(checkpointer.delete, "t", "a")
    assert "second commit()" in impact(batch.commit)


def test_impact_of_a_state_that_cannot_be_serialized():
    """A state that cannot be serialized was not saved, whichever way it should have been saved."""
    checkpointer = Checkpointer("memory://")
    calls = (
        lambda: checkpointer.save("t", object()),
        lambda: checkpointer.stage(object()),
        lambda: checkpointer.batch().save("t", object()),
    )
    for call in calls:
        with pytest.raises(SerializationError) as caught:
            call()
        assert caught.value.impact == NOT_SAVED


def test_damage_is_not_an_impact_on_saves(tmp_path):
    """A damaged database is reported by a load as nothing loaded, and not as a checkpoint that was not saved."""
    with Checkpointer(f"sqlite://{tmp_path}/s.db") as checkpointer:
        checkpointer.save("t", {"n": 1})
    (tmp_path / "s.db").write_bytes(b"not a database" * 100)
    with Checkpointer(f"sqlite://{tmp_path}/s.db") as checkpointer, pytest.raises(IntegrityError) as caught:
        checkpointer.load("t")
    assert caught.value.impact == NOT_LOADED


@pytest.mark.parametrize("scheme", ["file", "jsonl", "sqlite", "git", "memory"])
def test_messages_say_what_to_do(tmp_path, scheme):
    """The message for an id that exists, for a missing checkpoint and for a task without any ends with advice, on each store."""
    with Checkpointer(f"{scheme}://{'' if scheme == 'memory' else tmp_path / 'store'}") as checkpointer:
        checkpointer.save("t", {}, id="a")
        cases = ((lambda: checkpointer.save("t", {}, id="a")), (lambda: checkpointer.load("t", "b")), (lambda: checkpointer.load("u")))
        for call in cases:
            with pytest.raises(CheckpointError) as caught:
                call()
            assert str(caught.value).endswith(ADVICE[caught.value.code])


def test_message_for_a_forbidden_directory(tmp_path, monkeypatch):
    """The message of a save into a directory without permission says what to do. Raised by hand, because root may write everywhere."""

    def refuse(path, *_mode, **_directory):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(tmp_path / "store").save("t", {})
    assert str(caught.value).endswith(ADVICE["storage.permission"])


@pytest.mark.parametrize("url", ["file://{}", "jsonl://{}", "sqlite://{}/store.db", "git://{}"])
def test_message_for_a_path_through_a_file(tmp_path, url):
    """The message of a save to a path that leads through a file says what to do, and the operating system's error is its cause."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught, Checkpointer(url.format(tmp_path / "file" / "store")) as checkpointer:
        checkpointer.save("t", {})
    assert caught.value.code == "configuration.invalid"
    assert str(caught.value).endswith(ADVICE["configuration.invalid"])
    assert isinstance(caught.value.__cause__, OSError)
