"""The base class of instrumentors. A subclass has a name, a library and a table of targets; the rest is here.

A target is patched when its module is imported, or at once if it already is. `report()` lists what could not be patched; for a required
target one warning is logged, too. Nothing raises into the host program or into an import.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from ckpt_observe.instrument.import_hooks import when_imported
from ckpt_observe.instrument.wrappers import Wrapper

if TYPE_CHECKING:  # imports wrapt, which takes longer than everything else; loaded when there is something to patch
    from ckpt_observe.instrument.patching import Patch

logger = logging.getLogger(__name__)


class WrapperFactory(Protocol):
    """Creates a wrapper once the callable is available, so that calls need not inspect it again."""

    def wrapper_for(self, original: Any, /) -> Wrapper: ...


@dataclass(frozen=True, slots=True)
class Target:
    """One callable of a library: a row of an instrumentor's table."""

    module: str
    """The module that defines it. It is patched when that module is imported."""
    path: str
    """`function` or `Class.method` within the module."""
    wrapper: Wrapper | WrapperFactory
    required: bool = True
    """Whether to warn if it is missing, because the library is then observed only in part."""
    why: str = ""
    """What is recorded here, or why it may be missing."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.path}"

    def wrapper_for(self, original: Any) -> Wrapper:
        create = getattr(self.wrapper, "wrapper_for", None)
        return self.wrapper if create is None else create(original)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class TargetReport:
    """Whether one target is patched, and why not."""

    target: str
    state: Literal["patched", "missing", "waiting", "off", "failed"]
    """`missing`: the library has no such callable. `waiting`: its module is not imported yet. `off`: the instrumentor is switched off.
    `failed`: it could not be patched, or another package replaced it afterwards."""
    detail: str = ""
    """Why it is not patched. Empty for `patched` and `off`."""


class Instrumentor(ABC):
    """Observes one library. It can be switched on and off any number of times, from any thread."""

    name: ClassVar[str]
    library: ClassVar[str]
    """The library's top-level module, such as `torch`."""
    supported: ClassVar[str] = ""
    """The tested versions, as a requirement such as `torch>=2.4`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._enabled = False
        self._patches: dict[str, Patch] = {}
        self._failures: dict[str, TargetReport] = {}
        self._hooked_modules: set[str] = set()
        self._imported_modules: set[str] = set()
        self._warned_targets: set[str] = set()

    @abstractmethod
    def targets(self) -> Sequence[Target]:
        """Return the table of targets, the same at every call. Must not import the library."""

    def instrument(self) -> None:
        """Patch the targets whose modules are imported, and the others on import. Calling it again retries missing targets."""
        try:
            with self._lock:
                self._enabled = True
            for module in dict.fromkeys((self.library, *(target.module for target in self.targets()))):
                self._watch(module)
            self._warn_about_targets()
        except Exception:
            logger.exception("Because of an error, %s is not observed", self.name)

    def uninstrument(self) -> None:
        """Put the originals back and stop waiting for imports."""
        with self._lock:
            self._enabled = False
            patches = list(self._patches.values())
            self._patches.clear()
            self._failures.clear()
        for patch in patches:
            try:
                patch.remove()
            except Exception:
                logger.exception("%s: cannot unpatch %s; the patch is switched off", self.name, patch.path)

    def report(self) -> list[TargetReport]:
        """Return the state of every target."""
        return [self._report_target(target) for target in self.targets()]

    def _watch(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is not None:
            self._patch_all(name, module)
            return
        with self._lock:
            if name in self._hooked_modules:
                return
            self._hooked_modules.add(name)
        when_imported(name, functools.partial(self._on_import, name))

    def _on_import(self, name: str, module: ModuleType) -> None:
        """Patch the targets of a module. Must not raise, or the user's import fails.

        A hook cannot be removed; after `uninstrument` it does nothing.
        """
        try:
            with self._lock:
                self._hooked_modules.discard(name)
                self._imported_modules.add(name)
                enabled = self._enabled
            if enabled:
                self._patch_all(name, module)
                self._warn_about_targets()
        except Exception:
            logger.exception("%s: because of an error, %s is not observed", self.name, name)

    def _patch_all(self, name: str, module: ModuleType) -> None:
        for target in self.targets():
            if target.module == name:
                self._patch(target, module)

    def _patch(self, target: Target, module: ModuleType) -> None:
        from ckpt_observe.instrument import patching  # noqa: PLC0415
        from ckpt_observe.instrument.wrapper_chain import MissingTargetError  # noqa: PLC0415

        previous = self._patches.get(target.name)
        if previous is not None:
            if previous.in_place:
                return
            previous.remove()  # the module was reloaded or the name replaced; calls through the old wrapper must not count twice
        try:
            patch = patching.apply(target, module)  # without our lock: this may import a module whose import is waiting for us
        except MissingTargetError:
            if self._is_complete(target.module):
                self._failures[target.name] = TargetReport(target.name, "missing", f"{target.module} has no {target.path}")
            return
        except Exception as error:
            self._failures[target.name] = TargetReport(target.name, "failed", f"{type(error).__name__}: {error}")
            return
        with self._lock:
            if self._enabled:
                self._patches[target.name] = patch
                self._failures.pop(target.name, None)
                return
        patch.remove()  # switched off meanwhile

    def _report_target(self, target: Target) -> TargetReport:
        name = target.name
        if not self._enabled:
            return TargetReport(name, "off")
        patch = self._patches.get(name)
        if patch is not None:
            if patch.in_place:
                return TargetReport(name, "patched")
            return TargetReport(name, "failed", "another package replaced or hid it after it was patched")
        failure = self._failures.get(name)
        if failure is not None:
            return failure
        if sys.modules.get(self.library) is not None and self._is_absent(target.module):
            return TargetReport(name, "missing", f"module {target.module} does not exist")
        return TargetReport(name, "waiting", f"{target.module} is not imported yet")

    def _warn_about_targets(self) -> None:
        tested_versions = f" (tested with {self.supported})" if self.supported else ""
        for target in self.targets():
            report = self._report_target(target)
            if target.required and report.state in ("missing", "failed") and target.name not in self._warned_targets:
                self._warned_targets.add(target.name)
                logger.warning("%s: %s is not observed: %s%s", self.name, target.name, report.detail, tested_versions)

    def _is_absent(self, module: str) -> bool:
        """Return whether the parent package is imported but does not contain this module."""
        parent = module.rpartition(".")[0]
        if not parent or module in sys.modules:
            return False
        if parent not in sys.modules:
            return self._is_absent(parent)
        if not self._is_complete(parent):
            return False
        try:
            return find_spec(module) is None
        except (ImportError, ValueError):
            return True

    def _is_complete(self, module: str) -> bool:
        """Return whether the module has run to its end. While an import hook runs, Python itself still reports that it has not."""
        spec = getattr(sys.modules.get(module), "__spec__", None)
        return module in self._imported_modules or not getattr(spec, "_initializing", False)
