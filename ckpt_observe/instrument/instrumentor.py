"""The base class of instrumentors. A subclass has a name, a library and a table of targets and families; the rest is here.

A row is patched when its module is imported, or at once if it already is. `report()` lists what could not be patched; for a required
row one warning is logged, too. Nothing raises into the host program or into an import.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from ckpt_observe.instrument.import_hooks import is_running, when_imported
from ckpt_observe.instrument.targets import STATES, Family, State, Target, TargetReport, installed_version
from ckpt_observe.support.host_exceptions import raise_host_exception

if TYPE_CHECKING:  # import wrapt, which takes longer than everything else; loaded when there is something to patch
    from ckpt_observe.instrument.families import FamilyPatches
    from ckpt_observe.instrument.patching import Patch

logger = logging.getLogger(__name__)


class Instrumentor(ABC):
    """Observes one library. It can be switched on and off any number of times, from any thread."""

    name: ClassVar[str]
    library: ClassVar[str]
    """The library's top-level module, such as `torch`."""
    package: ClassVar[str] = ""
    """The library's name on PyPI, from which its version is known. Empty: the version does not matter."""
    supported: ClassVar[str] = ""
    """The tested versions, as a requirement such as `torch>=2.4`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._enabled = False
        self._patches: dict[str, Patch] = {}
        self._families: dict[str, FamilyPatches] = {}
        self._failures: dict[str, TargetReport] = {}
        self._hooked_modules: set[str] = set()
        self._imported_modules: set[str] = set()
        self._warned_rows: set[str] = set()

    @abstractmethod
    def targets(self) -> Sequence[Target]:
        """Return the table of targets, the same at every call. Must not import the library."""

    def families(self) -> Sequence[Family]:
        """Return the table of families, the same at every call."""
        return ()

    def instrument(self) -> None:
        """Patch the targets whose modules are imported, and the others on import. Calling it again retries missing targets."""
        try:
            with self._lock:
                self._enabled = True
            for module in dict.fromkeys((self.library, *self.modules())):
                self._watch(module)
            self._warn_about_rows()
        except Exception as error:
            raise_host_exception(error)
            logger.exception("Because of an error, %s is not observed", self.name)

    def mark_complete(self, module: str) -> None:
        """Remember that a module has run to its end: a row that it lacks now is missing, and not only late."""
        with self._lock:
            self._imported_modules.add(module)

    def uninstrument(self) -> None:
        """Put the originals back and stop waiting for imports."""
        with self._lock:
            self._enabled = False
            undo: list[tuple[str, Callable[[], object]]] = [(patch.path, patch.remove) for patch in self._patches.values()]
            undo += [(name, family.detach) for name, family in self._families.items()]
            self._patches.clear()
            self._families.clear()
            self._failures.clear()
        for path, remove in undo:
            try:
                remove()
            except Exception as error:
                raise_host_exception(error)
                logger.exception("%s: cannot unpatch %s; the patch is switched off", self.name, path)

    def adopt(self, family: str, instance: object) -> None:
        """Observe the class of an object as a member of the family with this name. It need not inherit from the base class."""
        patches = self._families.get(family)
        if patches is not None:
            patches.adopt_instance(instance)

    def modules(self) -> list[str]:
        """Return the modules after whose import a row can be patched."""
        return list(dict.fromkeys([*(row.module for row in self.targets()), *(row.when or row.module for row in self.families())]))

    def report(self) -> list[TargetReport]:
        """Return the state of every target, and of every method of the classes of the families."""
        return [self._explain_waiting(report) for row in self.rows() for report in self._report_row(row)]

    def state(self) -> State:
        """Return the state of the library as a whole: `renamed` or `failed` if that of a required row is, else `patched` if any row is."""
        required = {report.state for row in self.rows() if row.required for report in self._report_row(row)}
        states = required & {"renamed", "failed"} or {report.state for report in self.report()}
        return next((state for state in STATES if state in states), "absent")

    def _watch(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is not None:
            self._patch_all(name, module)
            if not is_running(name):
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
                self._warn_about_rows()
        except Exception as error:
            raise_host_exception(error)
            logger.exception("%s: because of an error, %s is not observed", self.name, name)

    def _patch_all(self, name: str, module: ModuleType) -> None:
        for target in self.targets():
            if target.module == name:
                self._patch(target, module)
        for family in self.families():
            if (family.when or family.module) == name:
                self._attach(family)

    def _patch(self, target: Target, module: ModuleType) -> None:
        from ckpt_observe.instrument import patching  # noqa: PLC0415
        from ckpt_observe.instrument.wrapper_chain import MissingTargetError  # noqa: PLC0415

        previous = self._patches.get(target.name)
        if previous is not None:
            if previous.in_place:
                return
            with self._lock:
                if self._patches.get(target.name) is not previous:  # another thread replaces it
                    return
                del self._patches[target.name]
            previous.remove()  # the module was reloaded or the name replaced; calls through the old wrapper must not count twice
        try:
            patch = patching.apply(module, target.path, target.wrapper_for)  # without our lock: may import a module that is waiting for us
        except MissingTargetError:
            if self._is_complete(target.module):
                self._record_missing(target, f"{target.module} has no {target.path}")
            return
        except Exception as error:
            raise_host_exception(error)
            self._failures[target.name] = TargetReport(target.name, "failed", f"{type(error).__name__}: {error}")
            return
        with self._lock:
            if self._enabled and target.name not in self._patches:
                self._patches[target.name] = patch
                self._failures.pop(target.name, None)
                return
        patch.remove()  # switched off meanwhile, or patched by another thread, which shares the wrapper

    def _attach(self, family: Family) -> None:
        from ckpt_observe.instrument.families import FamilyPatches  # noqa: PLC0415

        base = getattr(sys.modules.get(family.module), family.path, None)
        if not isinstance(base, type):
            self._record_missing(family, f"{family.module} has no class {family.path}")
            return
        with self._lock:
            patches = self._families.get(family.name)
            if not self._enabled or (patches is not None and patches.base is base):
                return
            self._families[family.name] = attached = FamilyPatches(family, base)
            self._failures.pop(family.name, None)
        if patches is not None:
            patches.detach()  # the module was reloaded
        attached.attach()

    def rows(self) -> list[Target | Family]:
        """Return all rows of the tables."""
        return [*self.targets(), *self.families()]

    def _record_missing(self, row: Target | Family, detail: str) -> None:
        package = row.versions.package or self.package
        version = installed_version(package)
        state: State = "renamed" if row.versions.include(version) else "absent"
        self._failures[row.name] = TargetReport(row.name, state, f"{detail} ({package} {version})" if version else detail)

    def _report_row(self, row: Target | Family) -> list[TargetReport]:
        """Return the state of a target, or of everything that a family consists of."""
        patches = self._families.get(row.name)
        return patches.report() if patches else [self._state_of(row)]

    def _state_of(self, row: Target | Family) -> TargetReport:
        name = row.name
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
        if sys.modules.get(self.library) is not None and self._is_absent(row.module):
            self._record_missing(row, f"module {row.module} does not exist")
            return self._failures.pop(name)
        return TargetReport(name, "waiting", f"{row.module} is not imported yet")

    def _explain_waiting(self, report: TargetReport) -> TargetReport:
        """Return the report, with `not installed` instead of `waiting` if the module will never be imported."""
        packages = [row.versions.package or self.package for row in self.rows() if row.name == report.target]
        package = packages[0] if packages else ""
        if report.state == "waiting" and package and not installed_version(package):
            return TargetReport(report.target, "not installed", f"{package} is not installed")
        return report

    def _warn_about_rows(self) -> None:
        tested_versions = f" (tested with {self.supported})" if self.supported else ""
        reports = [report for row in self.rows() if row.required for report in self._report_row(row)]
        for report in reports:
            if report.state in ("renamed", "failed") and report.target not in self._warned_rows:
                self._warned_rows.add(report.target)
                logger.warning("%s: %s is not observed: %s%s", self.name, report.target, report.detail, tested_versions)

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
