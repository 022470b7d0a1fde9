"""Calls a hook when a module has been imported.

Python asks its finders while it holds the global import lock, which every import of every thread needs. Our finder therefore imports
nothing and never waits. wrapt's import hooks wait for the parent package under that lock; if another thread is importing the parent, it
needs the lock for its next import, and both threads hang. Our hooks run after the module did, when only that module's own lock is held,
and Python detects deadlocks between those.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

ImportHook = Callable[[ModuleType], None]


class _Finder:
    """Asks the other finders for the module, and adds a loader that runs the hooks."""

    def __init__(self) -> None:
        self._hooks: dict[str, tuple[ImportHook, ...]] = {}
        self._searches: set[tuple[int, str]] = set()
        """Thread and module name of each search in progress. The other finders may call us again."""

    def add(self, name: str, hook: ImportHook) -> None:
        # If another thread pops the hooks now, one may run twice, which is harmless; none is lost.
        self._hooks[name] = (*self._hooks.get(name, ()), hook)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if (module := sys.modules.get(name)) is not None:  # imported by another thread meanwhile; None forbids the import
            self.run(name, module)

    def run(self, name: str, module: ModuleType) -> None:
        for hook in self._hooks.pop(name, ()):
            hook(module)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        search = threading.get_ident(), name
        if name not in self._hooks or search in self._searches:
            return None
        self._searches.add(search)
        try:
            spec = self._ask_other_finders(name, path, target)
        finally:
            self._searches.discard(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _Loader(spec.loader, self.run))
        return spec

    def _ask_other_finders(self, *request: Any) -> ModuleSpec | None:
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        return next((spec for finder in finders if (spec := finder.find_spec(*request)) is not None), None)


class _Loader:
    """Stands in for the module's own loader, and puts that one back before the module runs."""

    def __init__(self, loader: Any, run_hooks: Callable[[str, ModuleType], None]) -> None:
        self._loader, self._run_hooks = loader, run_hooks

    def exec_module(self, module: ModuleType) -> None:
        for owner, attribute in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(owner, attribute, None) is self:
                setattr(owner, attribute, self._loader)
        name = module.__name__
        self._loader.exec_module(module)
        self._run_hooks(name, sys.modules.get(name, module))  # the module may have replaced itself in sys.modules

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return copy.copy, (self._loader,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._loader)


when_imported = _Finder().add
"""`when_imported(name, hook)`: call `hook(module)` once, after that module is imported; at once if it already is."""
