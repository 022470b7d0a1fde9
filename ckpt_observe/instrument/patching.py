"""Puts one wrapper around one callable of a module or class, and takes it off again.

A patched callable still pickles, copies, binds and inspects like the original. Two limits remain: a reference to the original that
was taken before patching is not observed, and the original cannot be pickled by name while its name refers to the patched callable.
"""

from __future__ import annotations

import copy
import inspect
import operator
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import wrapt

from ckpt_observe.instrument import module_views
from ckpt_observe.instrument.wrapper_chain import is_wrapped_by, remove_wrapper, resolve, resolve_owner, wrapper_chain
from ckpt_observe.instrument.wrappers import Wrapper

if TYPE_CHECKING:
    _BoundFunctionWrapper = wrapt.BoundFunctionWrapper[..., Any]
    _FunctionWrapper = wrapt.FunctionWrapper[..., Any]
else:  # not generic in wrapt 1
    _BoundFunctionWrapper, _FunctionWrapper = wrapt.BoundFunctionWrapper, wrapt.FunctionWrapper


class Switch(list[None]):
    """Enables a wrapper; empty means off. A list, because wrapt evaluates it without running Python code, which saves 45 ns per call."""

    def on(self) -> None:
        self[:] = [None]

    def off(self) -> None:
        self.clear()


class _PatchedMethod(_BoundFunctionWrapper):
    """A patched callable after binding. It pickles and copies by way of the object it is bound to."""

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        bound_to = getattr(self.__wrapped__, "__self__", None)
        return getattr, (self._self_owner if bound_to is None else bound_to, self.__wrapped__.__name__)

    def __copy__(self) -> _PatchedMethod:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Like the standard library's methods: the copy is bound to a copy of the instance.
        bound_to = getattr(self.__wrapped__, "__self__", None)
        return self if bound_to is None else getattr(copy.deepcopy(bound_to, memo), self.__wrapped__.__name__)


_bind = wrapt.FunctionWrapper.__get__


class PatchedCallable(_FunctionWrapper):
    """Our wrapper; its type marks it as ours. It copies and pickles by reference, like a function."""

    __bound_function_wrapper__ = _PatchedMethod

    _self_created_attribute = False
    """Whether the parent had no such attribute before we patched it, so that it is deleted on removal and not set back."""
    _self_users = 1
    """Number of rows that share the wrapper: instrumentors of two libraries may patch the driver of the same database."""
    _self_unbound: tuple[Any, Any] = (None, None)
    """What was wrapped at the last access on the class, and what that access returned."""

    def __init__(self, wrapped: Any, wrapper: Any, enabled: Any = None, *, of_module: bool = False) -> None:
        super().__init__(wrapped, wrapper, enabled)
        self._self_unbound = None, None
        if of_module and isinstance(wrapped, FunctionType):
            # wrapt looks up `__self__` at every call, and a module's function has none: raising and dropping the AttributeError is
            # half of what a patched call costs (3,800 instructions). wrapt skips the lookup for static methods.
            super(wrapt.FunctionWrapper, self).__init__(wrapped, None, wrapper, enabled, "staticmethod")  # type: ignore[call-arg]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind like a function: on the class it is the same object at every access, because libraries compare methods with `is`."""
        if instance is not None or self._self_binding not in ("function", "staticmethod"):
            return _bind(self, instance, owner)
        wrapped, unbound = self._self_unbound
        if wrapped is not self.__wrapped__:  # first access, or another package removed its wrapper from beneath ours
            unbound = _bind(self, None, owner)
            self._self_unbound = self.__wrapped__, unbound
        return unbound

    def __reduce_ex__(self, protocol: object) -> str | tuple[Any, ...]:
        name: str = self.__wrapped__.__qualname__
        function = _lookup(self.__wrapped__.__module__, name)
        if function is self or wrapper_chain(function)[-1] is not wrapper_chain(self)[-1]:
            return name
        # An alias (torch.save is torch.serialization.save), or a reference from before the target was unpatched.
        # copy.copy returns a function unchanged, and it exists also where this package is not installed.
        return copy.copy, (function,)

    def __copy__(self) -> PatchedCallable:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PatchedCallable:
        return self


@dataclass(frozen=True, slots=True)
class Patch:
    """A wrapper that was put in place, and what is needed to remove it."""

    owner: Any
    """The module or class that `path` starts from."""
    path: str
    handle: PatchedCallable

    @property
    def switch(self) -> Switch:
        return cast(Switch, self.handle._self_enabled)

    @property
    def in_place(self) -> bool:
        """Whether the wrapper is on and still there, above or beneath other wrappers."""
        return bool(self.switch) and is_wrapped_by(self.owner, self.path, self.handle)

    def remove(self) -> bool:
        """Put the original object back, unless another row still uses the wrapper.

        Return False if another package's closure holds our wrapper; it then stays, but is switched off.
        """
        with _lock:
            self.handle._self_users -= 1
            if self.handle._self_users > 0:
                return True
            self.switch.off()
            was_removed = remove_wrapper(self.owner, self.path, self.handle, created_attribute=self.handle._self_created_attribute)
            module_views.close(self.owner, self.path)
            return was_removed


_lock = threading.RLock()  # re-entrant: a signal handler may import a module that has targets


def apply(owner: Any, path: str, create_wrapper: Callable[[Any], Wrapper]) -> Patch:
    """Wrap what `path` names in a module or class, or share our wrapper if it already has one.

    `json.dumps` in a module that imports `json` is wrapped for that module only (see `module_views`).
    Raise MissingTargetError if it does not exist, TypeError if it is not callable.
    """
    _callable_at(owner, path)  # before the lock: the lookup may import a module lazily, and that import may be waiting for us
    with _lock:
        parent, attribute, original = _callable_at(owner, path)
        handle: Any = next((layer for layer in wrapper_chain(original) if type(layer) is PatchedCallable), None)
        if handle is None:
            parent = module_views.open_for(owner, path, parent)
            switch = Switch()
            handle = PatchedCallable(original, create_wrapper(original), switch, of_module=isinstance(parent, ModuleType))
            handle._self_created_attribute = attribute not in getattr(parent, "__dict__", (attribute,))
            setattr(parent, attribute, handle)
            switch.on()
        elif not handle._self_enabled:
            # An earlier wrapper of ours that could not be removed from under a closure. Use it again.
            handle.__init__(handle.__wrapped__, create_wrapper(handle.__wrapped__), handle._self_enabled)
            handle._self_enabled.on()
            handle._self_users = 1
        else:
            handle._self_users += 1
        return Patch(owner, path, handle)


def _callable_at(owner: Any, path: str) -> tuple[Any, str, Any]:
    """Return parent, attribute name and value. An inherited method is returned with the class that defines it.

    A patched copy of it on the subclass would look like an override, and libraries ask classes what they override.
    """
    parent, attribute, original = resolve(owner, path)
    if inspect.isclass(parent):
        parent = resolve_owner(owner, path)[0]
    if inspect.isclass(original) or not (callable(original) or isinstance(original, classmethod)):
        raise TypeError(f"{owner.__name__}.{path} is a {type(original).__name__}, not a function or method")
    return parent, attribute, original


def _lookup(module: str, qualname: str) -> Any:
    try:
        return operator.attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        return None
