"""The reference checkpoint core: durable checkpoints of a program's state. Knows nothing of telemetry."""

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfo, KeyInfo, Restored
from ckpt_observe.core.stores import Store

__all__ = ["CheckpointInfo", "Checkpointer", "KeyInfo", "Restored", "Store"]
