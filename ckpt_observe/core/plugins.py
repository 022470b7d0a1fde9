"""Plug-ins by name: stores by URL scheme, serializers and codecs. Each module is imported on first use, so unused drivers cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ckpt_observe.errors import ConfigError
from ckpt_observe.support import entry_points

if TYPE_CHECKING:
    from ckpt_observe.core.codecs import Codec
    from ckpt_observe.core.serializers import Serializer
    from ckpt_observe.core.stores import Store

T = TypeVar("T")


class PluginRegistry(Generic[T]):
    """The factories of one kind of plug-in. Other packages can add theirs through entry points if the registry has a group."""

    def __init__(self, kind: str, bundled: dict[str, str], entry_point_group: str = "") -> None:
        """`kind` is used in messages. `bundled` maps names to `module:attribute`."""
        self._kind, self._group = kind, entry_point_group
        self._factories: dict[str, str | Callable[..., T]] = dict(bundled)

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Add a factory. It replaces an earlier one of the same name."""
        self._factories[name] = factory

    def names(self) -> list[str]:
        """Return the bundled and registered names, sorted. A name from an entry point is included once it was used."""
        return sorted(self._factories)

    def __contains__(self, name: str) -> bool:
        return name in self._factories

    def factory(self, name: str) -> Callable[..., T]:
        """Return the factory of this name, importing it if necessary. Raise ConfigError if there is none."""
        factory = self._factories.get(name)
        if factory is None:
            installed = entry_points.names(self._group) if self._group else []
            if name not in installed:
                names = ", ".join(sorted({*self.names(), *installed}))
                raise ConfigError(f"unknown {self._kind} {name!r}; use one of: {names}")
            factory = cast("Callable[..., T]", entry_points.load(self._group, name))
        elif isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            factory = cast("Callable[..., T]", getattr(import_module(module), attribute))
        self._factories[name] = factory
        return factory


stores: PluginRegistry[Store] = PluginRegistry(
    "store",
    {
        "memory": "ckpt_observe.core.stores.memory:MemoryStore",
        "file": "ckpt_observe.core.stores.file:FileStore",
        "az": "ckpt_observe.core.stores.objects:ObjectStore",
        "git": "ckpt_observe.core.stores.git:GitStore",
        "gs": "ckpt_observe.core.stores.objects:ObjectStore",
        "jsonl": "ckpt_observe.core.stores.jsonl:JsonlStore",
        "postgres": "ckpt_observe.core.stores.postgres:PostgresStore",
        "postgresql": "ckpt_observe.core.stores.postgres:PostgresStore",
        "redis": "ckpt_observe.core.stores.redis:RedisStore",
        "rediss": "ckpt_observe.core.stores.redis:RedisStore",
        "s3": "ckpt_observe.core.stores.objects:ObjectStore",
        "sqlite": "ckpt_observe.core.stores.sqlite:SqliteStore",
    },
    entry_point_group="ckpt_observe.stores",
)
"""Stores by URL scheme; each factory takes the URL. Other packages add theirs by entry point and test them with `StoreContract`."""

serializers: PluginRegistry[Serializer] = PluginRegistry(
    "format",
    {
        "arrays": "ckpt_observe.core.serializers.arrays:ArraysSerializer",
        "json": "ckpt_observe.core.serializers.builtin:JsonSerializer",
        "msgpack": "ckpt_observe.core.serializers.builtin:MsgpackSerializer",
        "pickle": "ckpt_observe.core.serializers.builtin:PickleSerializer",
    },
)
"""Serializers by the name of their format. Each factory takes no arguments."""

codecs: PluginRegistry[Codec] = PluginRegistry(
    "compression",
    {
        "gzip": "ckpt_observe.core.codecs:GzipCodec",
        "lz4": "ckpt_observe.core.codecs:Lz4Codec",
        "zstd": "ckpt_observe.core.codecs:ZstdCodec",
    },
)
"""Codecs by name, except `none`, which means no compression. Each factory takes no arguments."""
