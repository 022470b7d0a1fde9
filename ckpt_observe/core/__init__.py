"""The reference checkpoint core: saves and loads durable checkpoints of a program's state. It contains no telemetry."""

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.compare import Difference, compare
from ckpt_observe.core.hooks import Event
from ckpt_observe.core.loading.drill import Drill
from ckpt_observe.core.loading.verify import Finding
from ckpt_observe.core.model import CheckpointInfo, KeyInfo, Restored
from ckpt_observe.core.plugins import stores
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointError, ConfigError

__all__ = [
    "CheckpointError",
    "CheckpointInfo",
    "Checkpointer",
    "ConfigError",
    "Difference",
    "Drill",
    "Event",
    "Finding",
    "KeyInfo",
    "Query",
    "Restored",
    "Store",
    "compare",
    "stores",
]
