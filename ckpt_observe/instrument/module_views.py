"""Patches a function of a module for one of the modules that import it: `json.dumps` for a library, and not for the whole program.

The library's reference to the imported module is replaced by a view. A view has what is patched, and everything else is looked up in
the module itself.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


class ModuleView(ModuleType):
    """A module as one of the modules that import it sees it."""

    def __init__(self, module: ModuleType) -> None:
        vars(self).clear()  # otherwise the view would have a `__spec__` of its own
        vars(self).update(__wrapped__=module, __doc__=module.__doc__)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__wrapped__"], name)

    def __dir__(self) -> list[str]:
        return dir(vars(self)["__wrapped__"])


def open_for(owner: Any, path: str, parent: Any) -> Any:
    """Return what to patch, where `path` leads from `owner` to an attribute of `parent`: a view if `parent` is an imported module."""
    reference = path.rpartition(".")[0]
    is_imported = isinstance(owner, ModuleType) and isinstance(parent, ModuleType) and bool(reference)
    if not is_imported or type(parent) is ModuleView or parent.__name__.startswith(f"{owner.__name__}."):
        return parent
    view = ModuleView(parent)
    setattr(owner, reference, view)
    return view


def close(owner: Any, path: str) -> None:
    """Put the module itself back, if nothing in its view is patched any more."""
    reference = path.rpartition(".")[0]
    view = vars(owner).get(reference) if isinstance(owner, ModuleType) else None
    if type(view) is ModuleView and set(vars(view)) == {"__wrapped__", "__doc__"}:
        setattr(owner, reference, vars(view)["__wrapped__"])
