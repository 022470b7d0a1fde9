"""Checkpoints that were deleted or found damaged."""

from __future__ import annotations

import pytest

from ckpt_observe.query.lost_checkpoints import LostCheckpoints
from ckpt_observe.semconv import attributes as names
from tests.query.test_statistics import make_operation


@pytest.mark.parametrize(
    "loss",
    [{"name": "delete"}, {"name": "load", "outcome": "error", names.ERROR_CLASS: "integrity"}],
    ids=["deleted", "damaged"],
)
def test_checkpoint_is_lost_until_it_is_saved_again(loss):
    """A checkpoint under a fixed id, such as `latest.pt`, is good again after the next save. Others are not affected."""
    lost = LostCheckpoints([make_operation(10, **{names.ID: "latest.pt"}, **loss)])
    assert lost.contains(make_operation(5, **{names.ID: "latest.pt"}))
    assert not lost.contains(make_operation(20, **{names.ID: "latest.pt"}))
    assert not lost.contains(make_operation(5, **{names.ID: "other.pt"}))


@pytest.mark.parametrize("name", ["delete", "prune"])
def test_deleted_run_loses_all_its_checkpoints(name):
    """A delete of the whole run loses every earlier save. One without an id that removed something else does not."""
    deleted = LostCheckpoints([make_operation(10, name=name, **{names.WHOLE_TASK: True})])
    assert deleted.contains(make_operation(5, **{names.ID: "a"}))
    assert deleted.run_is_deleted_after(make_operation(5, **{names.ID: "a"}))
    assert not deleted.contains(make_operation(20, **{names.ID: "a"}))
    pending_feedback = LostCheckpoints([make_operation(10, name=name)])
    assert not pending_feedback.contains(make_operation(5, **{names.ID: "a"}))


def test_failed_delete_loses_nothing():
    """Only a delete that succeeded, or a read that found damage, counts."""
    operations = [
        make_operation(10, name="delete", outcome="error", **{names.ID: "a"}),
        make_operation(10, name="load", outcome="error", **{names.ID: "a", names.ERROR_CLASS: "access"}),
    ]
    assert not LostCheckpoints(operations).contains(make_operation(5, **{names.ID: "a"}))
