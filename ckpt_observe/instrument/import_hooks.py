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
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast

ImportHook = Callable[[ModuleType], None]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _as_import_machinery(function: _Function) -> _Function:
    """Let `warnings` skip the frame of a function that executes a module, as it skips those of importlib, by their file names.

    Otherwise a warning about an import (`stacklevel=2`) would name us and not the importing module, by which programs filter warnings.
    """
    code: CodeType = function.__code__
    function.__code__ = code.replace(co_filename=f"{code.co_filename} (importlib._bootstrap)")
    return function


class _Finder:
    """Asks the other finders for the module, and adds a loader that runs the hooks."""

    def __init__(self) -> None:
        self._hooks: dict[str, tuple[ImportHook, ...]] = {}
        self._searches: set[tuple[int, str]] = set()
        """Thread and module name of each search in progress. The other finders may call us again."""
        self._packages: tuple[str, ...] = ()
        """Prefixes of the modules that get our loader even without a hook."""
        self._running: set[str] = set()
        """Modules that our loader is executing."""

    def add(self, name: str, hook: ImportHook, package: str = "") -> None:
        # If another thread pops the hooks now, one may run twice, which is harmless; none is lost.
        self._hooks[name] = (*self._hooks.get(name, ()), hook)
        if package and f"{package}." not in self._packages:
            self._packages += (f"{package}.",)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        module = sys.modules.get(name)
        if module is not None and not self.is_running(name):  # imported by another thread meanwhile; None forbids the import
            self._run_hooks(name, module)

    def is_running(self, name: str) -> bool:
        return name in self._running

    @_as_import_machinery
    def execute(self, loader: Any, module: ModuleType) -> None:
        """Execute a module, then run its hooks, also those that were added meanwhile."""
        name = module.__name__
        self._running.add(name)
        try:
            loader.exec_module(module)
        finally:
            self._running.discard(name)
        self._run_hooks(name, sys.modules.get(name, module))  # the module may have replaced itself in sys.modules

    def _run_hooks(self, name: str, module: ModuleType) -> None:
        for hook in self._hooks.pop(name, ()):
            hook(module)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        search = threading.get_ident(), name
        if (name not in self._hooks and not name.startswith(self._packages)) or search in self._searches:
            return None
        self._searches.add(search)
        try:
            spec = self._ask_other_finders(name, path, target)
        finally:
            self._searches.discard(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _Loader(spec.loader, self.execute))
        return spec

    def _ask_other_finders(self, *request: Any) -> ModuleSpec | None:
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        return next((spec for finder in finders if (spec := finder.find_spec(*request)) is not None), None)


class _Loader:
    """Stands in for the module's own loader, and puts that one back before the module runs."""

    def __init__(self, loader: Any, execute: Callable[[Any, ModuleType], None]) -> None:
        self._loader, self._execute = loader, execute

    @_as_import_machinery
    def exec_module(self, module: ModuleType) -> None:
        for owner, attribute in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(owner, attribute, None) is self:
                setattr(owner, attribute, self._loader)
        self._execute(self._loader, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return copy.copy, (self._loader,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._loader)


_finder = _Finder()
when_imported = _finder.add
"""`when_imported(name, hook, package="")`: call `hook(module)` once, after that module is imported; at once if it already is.

If the hook itself waits for modules of a package, of which some may be running then because they import `name`, `package` is its name.
"""
is_running = _finder.is_running
"""`is_running(name)`: whether a module is being executed whose hooks run afterwards."""
