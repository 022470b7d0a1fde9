"""One import turns every checkpoint operation of a program into a trace and into metrics.

Importing this package does nothing: no thread, no file, no provider. `import ckpt_observe.auto`, or `observe()`, starts it. The names
below are looked up when they are first used, so that `ckpt_observe.core` alone brings no telemetry with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ckpt_observe.api import Watch, observe
    from ckpt_observe.errors import CkptObserveError, ConfigError
    from ckpt_observe.exporters.prometheus_collector import PrometheusCollector
    from ckpt_observe.scopes import checkpoint, phase, task

__all__ = ["CkptObserveError", "ConfigError", "PrometheusCollector", "Watch", "checkpoint", "observe", "phase", "task"]
__version__ = "0.1.0"

_HOMES: Final = {
    "CkptObserveError": "errors",
    "ConfigError": "errors",
    "PrometheusCollector": "exporters.prometheus_collector",
    "Watch": "api",
    "checkpoint": "scopes",
    "observe": "api",
    "phase": "scopes",
    "task": "scopes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
