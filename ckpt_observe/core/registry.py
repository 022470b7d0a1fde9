"""Stores, serializers, codecs and ciphers by name. A driver is imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Generic, TypeVar, cast

from ckpt_observe.errors import ConfigError
from ckpt_observe.support import entry_points

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories of one kind. Other packages add theirs through the entry point group, if there is one."""

    def __init__(self, kind: str, bundled: dict[str, str], entry_point_group: str = "") -> None:
        self._kind, self._group = kind, entry_point_group
        self._factories: dict[str, str | Callable[..., T]] = dict(bundled)

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Add a factory. It replaces an earlier one of the same name."""
        self._factories[name] = factory

    def names(self) -> list[str]:
        return sorted(self._factories)

    def __contains__(self, name: str) -> bool:
        return name in self._factories

    def factory(self, name: str) -> Callable[..., T]:
        """Return the factory of this name. Raise ConfigError if there is none."""
        factory = self._factories.get(name)
        if factory is None:
            installed = entry_points.names(self._group) if self._group else []
            if name not in installed:
                known = ", ".join(sorted({*self.names(), *installed}))
                raise ConfigError(f"unknown {self._kind} {name!r}: known are {known}")
            factory = cast("Callable[..., T]", entry_points.load(self._group, name))
        elif isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            factory = cast("Callable[..., T]", getattr(import_module(module), attribute))
        self._factories[name] = factory
        return factory
