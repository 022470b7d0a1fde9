"""Waiting for a module to be imported, by wrapt, but not before it is needed.

wrapt takes 100 ms to import (it brings asyncio), which every program with `import ckpt_observe.auto` would pay. So one finder of ours
waits for the first of all watched modules; then it hands everything over to wrapt's import hooks.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

logger = logging.getLogger(__name__)

Hook = Callable[[ModuleType], None]


class _Waiting:
    """A finder that finds nothing itself."""

    def __init__(self) -> None:
        self._hooks: list[tuple[str, Hook]] = []
        self._names: set[str] = set()
        self._handing_over = threading.RLock()

    def add(self, name: str, hook: Hook) -> None:
        with self._handing_over:
            self._hooks.append((name, hook))
            self._names.add(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if "wrapt" in sys.modules:
            self._hand_over()

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        try:
            self._hand_over()
        except Exception:  # a wrapt that cannot be imported must not make the user's import fail
            logger.exception("%s is not observed", name)
        self._names.discard(name)  # it is asked for again at once, and wrapt's finder is the first by now
        return find_spec(name)

    def _hand_over(self) -> None:
        with self._handing_over:  # whoever imports another watched module meanwhile waits here, or wrapt would come too late for it
            import wrapt  # noqa: PLC0415

            while self._hooks:
                name, hook = self._hooks.pop()
                wrapt.register_post_import_hook(hook, name)


when_imported = _Waiting().add
"""`when_imported(name, hook)`: `hook(module)` is called when that module has been imported."""
