"""Plug-ins by name: a dotted string until the first use, so that a driver is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Generic, TypeVar, cast

from ckpt_observe.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories of one kind of plug-in."""

    def __init__(self, kind: str, known: dict[str, str]) -> None:
        self._kind = kind
        self._factories: dict[str, str | Callable[..., T]] = dict(known)

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Make an own plug-in known; a later one of the same name replaces it."""
        self._factories[name] = factory

    def names(self) -> list[str]:
        return sorted(self._factories)

    def __contains__(self, name: str) -> bool:
        return name in self._factories

    def factory(self, name: str) -> Callable[..., T]:
        try:
            found = self._factories[name]
        except KeyError:
            raise ConfigError(f"unknown {self._kind} {name!r}: known are {', '.join(self.names())}") from None
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = cast("Callable[..., T]", getattr(import_module(module), attribute))
            self._factories[name] = found
        return found
