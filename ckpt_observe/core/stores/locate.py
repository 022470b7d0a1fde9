"""From a URL, a plain path or a store to a store."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from ckpt_observe.core.stores.base import Store, stores
from ckpt_observe.errors import ConfigError


def locate(where: str | os.PathLike[str] | Store) -> Store:
    """`memory://`, `file:///path`, any registered scheme, or its name alone; else a path, as a `Path` always is."""
    if isinstance(where, Store):
        return where
    url = f"{where}://" if isinstance(where, str) and where in stores else os.fspath(where)
    if not url:  # an unset variable, most often
        raise ConfigError("a store has a path or a URL, not an empty string")
    scheme, separator, _ = url.partition("://")
    if isinstance(where, str) and not separator and (where[0] == "~" or (where.partition(":")[0] in stores and ":" in where)):
        raise ConfigError(f"a store has a URL such as sqlite:///path, or a whole path: {where!r} would be a directory of that name")
    return stores.factory(scheme.lower() if separator else "file")(url)


def url_of(scheme: str, path: str) -> str:
    """The URL that leads to a path again: what would mean something else in a URL is percent-encoded, the rest left for people."""
    return f"{scheme}://{path.replace('%', '%25').replace('?', '%3F').replace('#', '%23')}"


def place(url: str) -> tuple[str, int | None, str]:
    """Host, port and path of a server's URL, without its credentials."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port, parts.path
    except ValueError:  # which may quote part of a password
        scheme = url.partition("://")[0]
        raise ConfigError(f"the URL of this {scheme} store does not read: is its port a number, its password percent-encoded?") from None
