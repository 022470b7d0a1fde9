"""One description of an observed call, made into the wrapper that fits whatever callable it meets."""

from __future__ import annotations

import inspect
from typing import Any

from ckpt_observe.instrument import kinds
from ckpt_observe.instrument.operation import Guard
from ckpt_observe.instrument.targets import Wrapper


class Observed(Guard):
    """How a call becomes an operation: `Target("library", "Store.save", Observed(begin, fault, note))`.

    A function is timed until it returns, or until the future it returned is done; a coroutine while it is awaited; a generator from its
    first step to its last. A plain function that hands out somebody else's coroutine or generator is timed until it returns.
    """

    __slots__ = ()

    def wrapper_for(self, original: Any) -> Wrapper:
        function = original.__func__ if isinstance(original, classmethod | staticmethod) else original
        if inspect.iscoroutinefunction(function):
            return kinds.coroutine(self)
        if inspect.isgeneratorfunction(function):
            return kinds.generator(self)
        if inspect.isasyncgenfunction(function):
            return kinds.async_generator(self)
        return kinds.plain(self)
