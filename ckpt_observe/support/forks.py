"""What runs in a forked child before any other code of ours: one registry, one order.

A child inherits memory and descriptors, but no threads. Locks may be held by threads that do not exist there, connections belong to the
parent, and a copied descriptor keeps a file lock or a port alive after the parent died. Each part registers here how it starts over.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol
from weakref import WeakValueDictionary

from ckpt_observe.support.host_exceptions import raise_host_exception


class Order(IntEnum):
    """When a reset runs. Within one value: in order of registration."""

    DESCRIPTORS = 0
    """Close descriptors that must not outlive the parent, such as those of file locks."""
    OBJECTS = 1
    """Replace locks, threads and connections of single objects."""
    PROGRAM = 2
    """Reset the observation of the process, which uses all of the above."""


class ForkReset(Protocol):
    """An object that starts over in a forked child."""

    def reset_after_fork(self) -> None: ...


_serial: Final = itertools.count()
_functions: Final[dict[tuple[int, int], Callable[[], None]]] = {}
_objects: Final[WeakValueDictionary[tuple[int, int], ForkReset]] = WeakValueDictionary()
_immortal: Final[list[object]] = []


def register(resettable: ForkReset, order: Order = Order.OBJECTS) -> None:
    """Call `reset_after_fork()` in every child forked from now on, as long as the object exists. It is referenced weakly."""
    _objects[order, next(_serial)] = resettable


def run_in_child(function: Callable[[], None], order: Order = Order.OBJECTS) -> None:
    """Call a function in every child forked from now on. For modules; objects use `register`."""
    _functions[order, next(_serial)] = function


def run_in_parent(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call `before` in the forking thread ahead of each fork, and `after` in the parent after the fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after)


def keep_alive(inherited: object) -> None:
    """Never free this object of the parent: its finalizer would close a connection that the parent still uses."""
    _immortal.append(inherited)


def _reset_child() -> None:
    """Run every reset. One that fails does not keep the others from running; Python prints the failures to stderr."""
    resets = {**_functions, **{key: each.reset_after_fork for key, each in list(_objects.items())}}
    errors: list[Exception] = []
    for key in sorted(resets):
        try:
            resets[key]()
        except Exception as error:
            raise_host_exception(error)
            errors.append(error)
    if errors:
        raise ExceptionGroup("resets after a fork failed", errors)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_child)
