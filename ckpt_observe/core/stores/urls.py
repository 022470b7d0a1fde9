"""Opens stores by URL, and parses and builds their URLs."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from ckpt_observe.core.plugins import stores
from ckpt_observe.core.stores.store import Store
from ckpt_observe.errors import ConfigError


def open_store(address: str | os.PathLike[str] | Store) -> Store:
    """Return the store at an address: a URL such as `file:///path`, a scheme alone such as `memory`, a path, or a store itself.

    A `Path` is always a path, even if its name is a scheme.
    """
    if isinstance(address, Store):
        return address
    url = f"{address}://" if isinstance(address, str) and address in stores else os.fspath(address)
    if not url:  # usually an environment variable that is not set
        raise ConfigError("the address of a store must be a path or a URL, not an empty string")
    scheme, separator, _ = url.partition("://")
    if isinstance(address, str) and not separator and (address[0] == "~" or (address.partition(":")[0] in stores and ":" in address)):
        raise ConfigError(f"{address!r} is neither a URL such as sqlite:///path nor an unambiguous path: write the whole URL or path")
    return stores.factory(scheme.lower() if separator else "file")(url)


def path_to_url(scheme: str, path: str) -> str:
    """Return the URL of a path. Only characters with a meaning in URLs are percent-encoded, so that it stays readable."""
    return f"{scheme}://{path.replace('%', '%25').replace('?', '%3F').replace('#', '%23')}"


def server_address(url: str) -> tuple[str, int | None, str]:
    """Return host, port (None if not set) and path of a server's URL, without credentials. ConfigError if it is invalid."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port, parts.path
    except ValueError:  # not chained: its message may contain part of the password
        scheme = url.partition("://")[0]
        raise ConfigError(f"invalid {scheme} URL: the port must be a number, and the password percent-encoded") from None
