"""Waiting for a module to be imported.

Python asks its finders under the one import lock that every import of every thread needs. So ours imports nothing there and waits for
nobody. wrapt's own import hooks wait there for the parent package, which another thread may be in the midst of: that thread needs the lock
for its next import, and neither of them ever goes on. Hooks run when the module has, with no lock held but that module's own, of which
Python knows who waits for it.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

Hook = Callable[[ModuleType], None]


class _Finder:
    """Finds what the other finders find, and gives it a loader that runs the hooks."""

    def __init__(self) -> None:
        self._hooks: dict[str, tuple[Hook, ...]] = {}
        self._asking: set[tuple[int, str]] = set()
        """What each thread asks the others for. They may ask us in turn."""

    def add(self, name: str, hook: Hook) -> None:
        self._hooks[name] = (*self._hooks.get(name, ()), hook)  # who is popped meanwhile runs twice, which does no harm; none is lost
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if (module := sys.modules.get(name)) is not None:  # by another thread, meanwhile; None is how an import is forbidden
            self.run(name, module)

    def run(self, name: str, module: ModuleType) -> None:
        for hook in self._hooks.pop(name, ()):
            hook(module)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        asking = threading.get_ident(), name
        if name not in self._hooks or asking in self._asking:
            return None
        self._asking.add(asking)
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._asking.discard(asking)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _Loader(spec.loader, self.run))
        return spec

    def _found_by_others(self, *wanted: Any) -> ModuleSpec | None:
        others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        return next((spec for each in others if (spec := each.find_spec(*wanted)) is not None), None)


class _Loader:
    """The module's own loader, which takes its place again before the module runs; until then it passes for it."""

    def __init__(self, loader: Any, then: Callable[[str, ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def exec_module(self, module: ModuleType) -> None:
        for owner, attribute in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(owner, attribute, None) is self:
                setattr(owner, attribute, self._loader)
        name = module.__name__
        self._loader.exec_module(module)
        self._then(name, sys.modules.get(name, module))  # it may have put another in its place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return copy.copy, (self._loader,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._loader)


when_imported = _Finder().add
"""`when_imported(name, hook)`: `hook(module)` is called when that module has been imported."""
