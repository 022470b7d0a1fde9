"""Stores in a forked child: a connection belongs to the process that made it, and a lock may be held by a thread that is not there."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """A store that has something to begin anew in a child."""

    def begin_anew(self) -> None: ...


_living: WeakSet[Forked] = WeakSet()
abandoned: list[object] = []
"""Connections of the parent, kept so that they are never closed here: closing one would disturb the parent's."""


def watch(store: Forked) -> None:
    """Call `begin_anew` of the store in every child forked from now on."""
    _living.add(store)


def _begin_anew() -> None:
    for store in list(_living):
        store.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
