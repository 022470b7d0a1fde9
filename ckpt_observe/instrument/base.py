"""What every instrumentor is: a name, a library and a table of targets. All the rest is here.

A target is patched when its module is imported, or at once if it is. What could not be patched is told by `report()` and, where it is
required, by one warning in the log. Nothing raises, neither into the program nor into somebody's import.
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
from typing import TYPE_CHECKING, ClassVar, Literal

from ckpt_observe.instrument.imports import when_imported
from ckpt_observe.instrument.targets import Target

if TYPE_CHECKING:  # wrapt comes with it, and takes longer to import than all the rest: when there is something to patch
    from ckpt_observe.instrument.patching import Patch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TargetReport:
    """How it stands with one target."""

    target: str
    state: Literal["patched", "missing", "waiting", "off", "failed"]
    """`waiting`: its module is not imported yet. `off`: not instrumented."""
    detail: str = ""


class Instrumentor(ABC):
    """Base of the instrumentors, one per library. Switched on and off any number of times, from any thread."""

    name: ClassVar[str]
    library: ClassVar[str]
    """Top-level module."""
    supported: ClassVar[str] = ""
    """Versions it was tested with, as a requirement: `torch>=2.4`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wanted = False
        self._patches: dict[str, Patch] = {}
        self._troubles: dict[str, TargetReport] = {}
        self._hooked: set[str] = set()
        self._imported: set[str] = set()
        self._warned: set[str] = set()

    @abstractmethod
    def targets(self) -> Sequence[Target]:
        """The table, the same each time. Must not import the library."""

    def instrument(self) -> None:
        """Patches what is imported and waits for the rest. Called again, it tries again what was missing."""
        try:
            with self._lock:
                self._wanted = True
            for module in dict.fromkeys((self.library, *(target.module for target in self.targets()))):
                self._watch(module)
            self._warn()
        except Exception:
            logger.exception("%s is not observed", self.name)

    def uninstrument(self) -> None:
        """Puts the originals back and waits for no import any more."""
        with self._lock:
            self._wanted = False
            patches = list(self._patches.values())
            self._patches.clear()
            self._troubles.clear()
        for patch in patches:
            try:
                patch.remove()
            except Exception:
                logger.exception("%s: %s is switched off, but could not be unpatched", self.name, patch.path)

    def report(self) -> list[TargetReport]:
        return [self._standing(target) for target in self.targets()]

    def _watch(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is not None:
            self._patch_all(name, module)
            return
        with self._lock:
            if name in self._hooked:
                return
            self._hooked.add(name)
        when_imported(name, functools.partial(self._on_import, name))

    def _on_import(self, name: str, module: ModuleType) -> None:
        """What raises here would make the user's import fail. A hook cannot be taken back: after `uninstrument` it does nothing."""
        try:
            with self._lock:
                self._hooked.discard(name)
                self._imported.add(name)
                wanted = self._wanted
            if wanted:
                self._patch_all(name, module)
                self._warn()
        except Exception:
            logger.exception("%s: %s is not observed", self.name, name)

    def _patch_all(self, name: str, module: ModuleType) -> None:
        for target in self.targets():
            if target.module == name:
                self._patch(target, module)

    def _patch(self, target: Target, module: ModuleType) -> None:
        from ckpt_observe.instrument import patching  # noqa: PLC0415

        before = self._patches.get(target.name)
        if before is not None:
            if before.in_place:
                return
            before.remove()  # reloaded or hidden since: whatever still reaches the old wrapper must not count twice
        try:
            patch = patching.apply(target, module)  # without our lock: it may import, and that import may be waiting for us
        except patching.Missing:
            if self._is_complete(target.module):
                self._troubles[target.name] = TargetReport(target.name, "missing", f"{target.module} has no {target.path}")
            return
        except Exception as error:
            self._troubles[target.name] = TargetReport(target.name, "failed", f"{type(error).__name__}: {error}")
            return
        with self._lock:
            if self._wanted:
                self._patches[target.name] = patch
                self._troubles.pop(target.name, None)
                return
        patch.remove()  # switched off while we were at it

    def _standing(self, target: Target) -> TargetReport:
        name = target.name
        if not self._wanted:
            return TargetReport(name, "off")
        patch = self._patches.get(name)
        if patch is not None:
            if patch.in_place:
                return TargetReport(name, "patched")
            return TargetReport(name, "failed", "was replaced or hidden by somebody after it was patched")
        trouble = self._troubles.get(name)
        if trouble is not None:
            return trouble
        if sys.modules.get(self.library) is not None and self._is_absent(target.module):
            return TargetReport(name, "missing", f"there is no module {target.module}")
        return TargetReport(name, "waiting", f"{target.module} is not imported yet")

    def _warn(self) -> None:
        tested = f" (tested with {self.supported})" if self.supported else ""
        for target in self.targets():
            standing = self._standing(target)
            if target.required and standing.state in ("missing", "failed") and target.name not in self._warned:
                self._warned.add(target.name)
                logger.warning("%s: %s is not observed: %s%s", self.name, target.name, standing.detail, tested)

    def _is_absent(self, module: str) -> bool:
        """Whether the package that should have this module is imported and does not have it."""
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
        """Whether it has run to its end; while an import hook runs, the import system itself still says no."""
        spec = getattr(sys.modules.get(module), "__spec__", None)
        return module in self._imported or not getattr(spec, "_initializing", False)
