"""Observes checkpoints: one import turns the checkpoint operations of supported libraries into traces and metrics.

Importing this package has no effect: no thread, no file, no TracerProvider. `import ckpt_observe.auto` or `observe()` starts observation.
The public names are imported on first use, so that `ckpt_observe.core` alone does not load any telemetry.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ckpt_observe.api import Watch, observe
    from ckpt_observe.errors import CkptObserveError, ConfigError
    from ckpt_observe.exporters.prometheus_collector import PrometheusCollector
    from ckpt_observe.instrument.carrying import carry
    from ckpt_observe.scopes import checkpoint, phase, task

__all__ = ["CkptObserveError", "ConfigError", "PrometheusCollector", "Watch", "carry", "checkpoint", "observe", "phase", "task"]
__version__ = "0.1.0"

_MODULES: Final = {
    "CkptObserveError": "errors",
    "ConfigError": "errors",
    "PrometheusCollector": "exporters.prometheus_collector",
    "Watch": "api",
    "carry": "instrument.carrying",
    "checkpoint": "scopes",
    "observe": "api",
    "phase": "scopes",
    "task": "scopes",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
