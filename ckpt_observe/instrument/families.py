"""Patches the classes of a family: the subclasses of a base class, now and whenever one is defined, and classes adopted by instance.

Classes are held weakly, because programs define classes in functions and drop them.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckpt_observe.instrument import patching
from ckpt_observe.instrument.patching import Patch, PatchedCallable
from ckpt_observe.instrument.targets import Family, TargetReport, WrapperFactory, wrapper_for
from ckpt_observe.instrument.wrapper_chain import wrapper_chain
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault
from ckpt_observe.support.host_exceptions import raise_host_exception


class FamilyPatches:
    """The patched classes of one family."""

    def __init__(self, family: Family, base: type) -> None:
        self._family, self.base = family, base
        self._is_protocol: bool = getattr(base, "_is_protocol", False)  # a class that implements it need not inherit from it
        self._members: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()
        """By identity, because a metaclass may make its classes unhashable."""
        self._failures: dict[str, TargetReport] = {}
        self._lock = threading.RLock()
        self._hook: classmethod[Any, Any, None] | None = None
        self._own_hook: Any = None
        """The `__init_subclass__` that the base class defines itself, if any."""

    def attach(self) -> None:
        """Patch the classes that exist, and watch for new ones."""
        for method in self._family.declared:
            if not hasattr(self.base, method):
                name = _name(self.base, method)
                self._failures[name] = TargetReport(name, "renamed", f"{self._family.name} has no {method}")
        if self._family.include_base:
            self.adopt(self.base)
        for name in self._family.members:
            self._adopt_by_name(name)
        for member in list(subclasses(self.base)):
            self.adopt(member)
        if self._hook is None and not self._is_protocol:
            self._watch_subclasses()

    def _watch_subclasses(self) -> None:
        base: Any = self.base
        own_hook = vars(base).get("__init_subclass__")

        def init_subclass(cls: type, /, **kwargs: Any) -> None:
            if own_hook is None:
                super(base, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
            else:
                own_hook.__get__(None, cls)(**kwargs)
            try:
                self.adopt(cls)
            except Exception as error:
                record_fault(error)

        self._own_hook, self._hook = own_hook, classmethod(init_subclass)
        base.__init_subclass__ = self._hook

    def _adopt_by_name(self, name: str) -> None:
        member = getattr(sys.modules[self._family.module], name, None)
        if isinstance(member, type):
            self.adopt(member)
        else:
            full_name = f"{self._family.module}.{name}"
            self._failures[full_name] = TargetReport(full_name, "renamed", f"{self._family.module} has no class {name}")

    def adopt_instance(self, instance: object) -> None:
        """Patch the class of an object, whether or not it inherits from the base class."""
        if type(instance) is not self.base or self._family.include_base:
            self.adopt(type(instance))

    def adopt(self, member: type) -> None:
        """Patch the methods of a class, in the classes that define them, except in the base class and what that inherits from.

        Those of a mixin, which does not inherit from the base class, are observed for members only. A class that does not inherit from the
        base class either is observed with all that it inherits from, and so is each class if the base class is a `Protocol`.
        """
        has_mixins = not self._is_protocol and _inherits(member, self.base)
        for each in member.__mro__:
            if each is member or not _inherits(self.base, each):
                self._patch_methods(each, is_mixin=has_mixins and not _inherits(each, self.base))

    def _patch_methods(self, member: type, *, is_mixin: bool = False) -> None:
        with self._lock:
            if self._members.get(id(member)) is member:
                return
            self._members[id(member)] = member
        for method, row in self._family.methods.items():
            if method in vars(member):
                row_of_member = _MixinMethod(row, self.base) if is_mixin else row
                create_wrapper = partial(wrapper_for, row_of_member, declared=vars(self.base).get(method))
                try:
                    patching.apply(member, method, create_wrapper)
                except Exception as error:
                    raise_host_exception(error)
                    name = _name(member, method)
                    self._failures[name] = TargetReport(name, "failed", f"{type(error).__name__}: {error}")

    def detach(self) -> None:
        """Put the originals back."""
        with self._lock:
            members = self._living_members()
            self._members.clear()
            self._failures.clear()
            if self._hook is not None and self.base.__dict__.get("__init_subclass__") is self._hook:
                if self._own_hook is None:
                    del self.base.__init_subclass__
                else:
                    setattr(self.base, "__init_subclass__", self._own_hook)  # noqa: B010 - mypy refuses the plain form
            self._hook = None
        for patch in self._patches(members):
            patch.remove()

    def _living_members(self) -> list[type]:
        """Return the classes. Other threads may add some meanwhile, so the dictionary is read at once."""
        return [member for reference in self._members.valuerefs() if (member := reference()) is not None]

    def _patches(self, members: list[type]) -> Iterator[Patch]:
        for member in members:
            for method in self._family.methods:
                layers = wrapper_chain(vars(member)[method]) if method in vars(member) else ()
                yield from (Patch(member, method, layer) for layer in layers if type(layer) is PatchedCallable)

    def report(self) -> list[TargetReport]:
        """Return the state of each method of each class."""
        patches = list(self._patches(self._living_members()))
        rows = [TargetReport(_name(patch.owner, patch.path), "patched" if patch.in_place else "failed") for patch in patches]
        return rows + list(self._failures.values())


@dataclass(frozen=True, slots=True, eq=False)
class _MixinMethod:
    """A method of a mixin. It is observed for members of the family, and not for other classes that have the mixin."""

    row: Wrapper | WrapperFactory
    base: type

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a method."""
        observe = wrapper_for(self.row, original, declared)

        def call(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
            return observe(wrapped, instance, args, kwargs) if _inherits(type(instance), self.base) else wrapped(*args, **kwargs)

        return call


def _inherits(kind: type, base: type) -> bool:
    """Return whether a class really has this base class. `issubclass` also says so of what looks like a `Protocol`."""
    return any(each is base for each in kind.__mro__)


def _name(member: type, method: str) -> str:
    return f"{member.__module__}.{member.__qualname__}.{method}"


def subclasses(base: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses, each once."""
    visited: set[int] = set()
    waiting: list[type] = type.__subclasses__(base)
    while waiting:
        member = waiting.pop()
        if id(member) not in visited:  # a metaclass may make its classes unhashable
            visited.add(id(member))
            yield member
            waiting += type.__subclasses__(member)
