"""Finds and removes our wrapper among those that other packages put on the same callable.

wrapt 2.4 has functions for this. These also work with wrapt 1.17, which a program needs if it runs an opentelemetry-instrumentation
older than 0.63b0.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import wrapt

MAX_WRAPPERS: Final = 64
"""Wrappers on one callable at most. A longer chain is an object that invents a `__wrapped__` whenever it is asked for one."""

_PROXY: Final[type] = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)  # wrapt 1 has only ObjectProxy


class MissingTargetError(AttributeError):
    """The module does not have the target."""


def resolve(root: Any, path: str) -> tuple[Any, str, Any]:
    """Return what `path` names in a module or class as parent, attribute name and value. A method is returned unbound, as in its class.

    Raise MissingTargetError if it does not exist.
    """
    try:
        parent, attribute, value = wrapt.resolve_path(root, path)
    except AttributeError as error:
        raise MissingTargetError(f"{root.__name__} has no {path}") from error
    return parent, attribute, value


def resolve_owner(root: Any, path: str) -> tuple[Any, str, Any]:
    """Like `resolve`, with the object whose `__dict__` holds the attribute: a base class, if the attribute is inherited."""
    parent, attribute, value = resolve(root, path)
    if inspect.isclass(parent):
        candidates: tuple[Any, ...] = inspect.getmro(parent)
    else:
        candidates = (parent,) if inspect.ismodule(parent) else (parent, *inspect.getmro(type(parent)))
    for candidate in candidates:
        if attribute in getattr(candidate, "__dict__", ()):
            return candidate, attribute, value
    raise MissingTargetError(f"{root.__name__} computes {path} when it is read, so it cannot be patched")


def wrapper_chain(outermost: object) -> list[Any]:
    """Return an object and everything that it wraps, outermost first. Closures count if they set `__wrapped__`."""
    chain: list[Any] = []
    layer: Any = outermost
    while not any(layer is other for other in chain):  # by identity: proxies compare like what they wrap
        if len(chain) == MAX_WRAPPERS:
            raise RuntimeError(f"a {type(outermost).__name__} has more than {MAX_WRAPPERS} wrappers; it is not patched")
        chain.append(layer)
        try:
            layer = layer.__wrapped__
        except AttributeError:
            break
    return chain


def remove_wrapper(root: Any, path: str, wrapper: Any, *, created_attribute: bool) -> bool:
    """Remove one wrapper from the target, above or beneath others. Return False if it cannot be removed, because a closure holds it.

    `created_attribute` says that the parent had no such attribute before the wrapper was put there; it is then deleted again.
    """
    try:
        owner, attribute, outermost = resolve_owner(root, path)
    except MissingTargetError:
        return not is_wrapped_by(root, path, wrapper)
    chain = wrapper_chain(outermost)
    position = next((index for index, layer in enumerate(chain) if layer is wrapper), None)
    if position is None:
        return True
    if position:
        holder = chain[position - 1]
        if not issubclass(type(holder), _PROXY):  # a closure calls what it captured, whatever its `__wrapped__` says
            return False
        holder.__wrapped__ = wrapper.__wrapped__
    elif created_attribute:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, wrapper.__wrapped__)
    return True


def is_wrapped_by(root: Any, path: str, wrapper: object) -> bool:
    """Return whether the target has this wrapper, above or beneath others."""
    try:
        return any(layer is wrapper for layer in wrapper_chain(resolve(root, path)[2]))
    except MissingTargetError:
        return False
