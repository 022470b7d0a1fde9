"""Stores: where checkpoints are kept. `core.plugins.stores` lists them by URL scheme."""

from ckpt_observe.core.stores.store import Capabilities, Store
from ckpt_observe.core.stores.urls import open_store

__all__ = ["Capabilities", "Store", "open_store"]
