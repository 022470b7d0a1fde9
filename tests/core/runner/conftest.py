"""An agent that counts, and a Checkpointer in memory."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.runner import Done

START = {"n": 0, "log": []}


def count_to(limit, fail_at=None):
    """Return a step function that counts to the limit."""

    def advance(state, session):
        if state["n"] == fail_at:
            raise RuntimeError("out of luck")
        state = {**state, "n": state["n"] + 1, "log": [*state["log"], state["n"]]}
        return Done(state) if state["n"] == limit else state

    return advance


@pytest.fixture
def checkpointer():
    return Checkpointer("memory://")
