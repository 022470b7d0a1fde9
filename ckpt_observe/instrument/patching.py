"""Putting one wrapper around one callable of a module, and taking it away without a trace.

A patched callable still pickles, copies, binds and inspects as the original does. What cannot be helped: a reference to the original
taken before patching is not observed, and cannot be pickled by name while the name means the patched one.
"""

from __future__ import annotations

import copy
import inspect
import operator
import sys
import threading
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, cast

import wrapt

from ckpt_observe.instrument.targets import Target


class Switch(list[None]):
    """Empty is off. A list and no function, because wrapt asks a list for its truth without running any Python: 45 ns a call."""

    def on(self) -> None:
        self[:] = [None]

    def off(self) -> None:
        self.clear()


class _PatchedMethod(wrapt.BoundFunctionWrapper[..., Any]):
    """A patched callable after binding: reached again through what it is bound to."""

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        bound_to = getattr(self.__wrapped__, "__self__", None)
        return getattr, (self._self_owner if bound_to is None else bound_to, self.__wrapped__.__name__)

    def __copy__(self) -> _PatchedMethod:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # As the standard library does for methods: the copy is bound to a copy of the instance.
        bound_to = getattr(self.__wrapped__, "__self__", None)
        return self if bound_to is None else getattr(copy.deepcopy(bound_to, memo), self.__wrapped__.__name__)


class PatchedCallable(wrapt.FunctionWrapper[..., Any]):
    """Our wrapper, and the mark by which we know our own. Copies and pickles by reference, as functions do."""

    __bound_function_wrapper__ = _PatchedMethod

    def __init__(self, wrapped: Any, wrapper: Any, enabled: Any = None, *, of_module: bool = False) -> None:
        super().__init__(wrapped, wrapper, enabled)
        if of_module and isinstance(wrapped, FunctionType):
            # It has no `__self__`, and yet wrapt asks for it at every call: the AttributeError that this makes and drops is half of
            # what a patched call costs (3,800 instructions). It does not ask what it takes for a static method.
            super(wrapt.FunctionWrapper, self).__init__(wrapped, None, wrapper, enabled, "staticmethod")  # type: ignore[call-arg]

    def __reduce_ex__(self, protocol: object) -> str | tuple[Any, ...]:
        name: str = self.__wrapped__.__qualname__
        named = _lookup(self.__wrapped__.__module__, name)
        if named is self or wrapt.unwrapped(named) is not wrapt.unwrapped(self):
            return name
        # A second name for a function (torch.save is torch.serialization.save), or one kept from before it was unpatched.
        # copy.copy gives back any function as it is, and is there also where this package is not.
        return copy.copy, (named,)

    def __copy__(self) -> PatchedCallable:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PatchedCallable:
        return self


@dataclass(frozen=True, slots=True)
class Patch:
    """A wrapper that is in place, and what is needed to take it away."""

    module: ModuleType
    path: str
    handle: PatchedCallable

    @property
    def switch(self) -> Switch:
        return cast(Switch, self.handle._self_enabled)

    @property
    def in_place(self) -> bool:
        """Whether it is on, and still found where it was put, over or under whatever else is there."""
        try:
            return bool(self.switch) and wrapt.is_wrapped_by(wrapt.resolve_path(self.module, self.path)[2], self.handle)
        except Missing:
            return False

    def remove(self) -> bool:
        """Puts the very same object back; False where somebody's closure holds ours, which then stays, switched off."""
        with _lock:
            self.switch.off()
            try:
                wrapt.unwrap_object(self.module, self.path, self.handle, missing_ok=True)
            except wrapt.WrapperNotOutermostError:
                return False
            return True


Missing = wrapt.PathResolutionError
"""The module has no such name."""
_lock = threading.RLock()  # re-entrant: a signal handler may import a module that is to be patched


def apply(target: Target, module: ModuleType) -> Patch:
    """Wraps the target, unless a wrapper of ours is there already, which is then shared.

    Raises `Missing` when the module has no such name, TypeError when the name is not something to call.
    """
    _callable_at(target, module)  # before the lock: looking may import lazily, and an import may be waiting for us
    with _lock:
        original = _callable_at(target, module)
        handle = wrapt.find_wrapper(original, predicate=_is_ours)
        if handle is None:
            switch = Switch()
            of_module = {"of_module": "." not in target.path}
            handle = wrapt.wrap_object(module, target.path, PatchedCallable, (target.wrapper_for(original), switch), of_module)
            switch.on()
        elif not handle._self_enabled:
            # Left behind, switched off, under a closure that could not be opened: put to use again.
            handle.__init__(handle.__wrapped__, target.wrapper_for(handle.__wrapped__), handle._self_enabled)
            handle._self_enabled.on()
        return Patch(module, target.path, handle)


def _callable_at(target: Target, module: ModuleType) -> Any:
    original = wrapt.resolve_path(module, target.path)[2]
    if inspect.isclass(original) or not (callable(original) or isinstance(original, classmethod)):
        raise TypeError(f"{target.name} is a {type(original).__name__}, not a function or method")
    return original


def _is_ours(entry: object) -> bool:
    return type(entry) is PatchedCallable


def _lookup(module: str, qualname: str) -> Any:
    try:
        return operator.attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        return None
