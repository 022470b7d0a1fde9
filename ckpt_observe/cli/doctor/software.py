"""Which versions are here, and which callables can be patched in them."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from ckpt_observe.config import Settings
from ckpt_observe.instrument import registry
from ckpt_observe.instrument.instrumentor import Instrumentor

_PACKAGES: Final = (
    "ckpt-observe", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-instrumentation", "wrapt", "msgspec", "grpcio",
    "prometheus-client", "lmnr",
)  # fmt: skip


def versions() -> Iterator[Finding]:
    found = ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name)))
    yield Finding(OK, "versions", f"Python {platform.python_version()}, {found}")


def patches(settings: Settings) -> Iterator[Finding]:
    """Each library is imported and patched for real, and put back."""
    disabled = settings.disabled_instrumentations
    for instrumentor in registry.load():
        if not registry.load([instrumentor.name], disabled):
            yield Finding(NOTE, f"patches {instrumentor.name}", f"left alone, by {', '.join(sorted(disabled))}")
        else:
            yield from _patched(instrumentor)


def _patched(instrumentor: Instrumentor) -> Iterator[Finding]:
    subject = f"patches {instrumentor.name}"
    try:
        __import__(instrumentor.library)
    except ModuleNotFoundError:
        yield Finding(OK, subject, f"{instrumentor.library} is not installed")
        return
    for module in {target.module for target in instrumentor.targets()}:
        with suppress(ImportError):  # the report says what is missing
            importlib.import_module(module)
    instrumentor.instrument()
    rows = instrumentor.report()
    instrumentor.uninstrument()
    bad = [row for row in rows if row.state != "patched"]
    yield Finding(OK, subject, f"{len(rows) - len(bad)} of {len(rows)} callables can be patched")
    required = {target.name for target in instrumentor.targets() if target.required}
    for row in bad:
        yield Finding(PROBLEM if row.target in required else NOTE, row.target, row.detail)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
