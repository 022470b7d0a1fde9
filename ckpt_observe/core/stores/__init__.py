"""Stores, by URL scheme."""

from ckpt_observe.core.stores.base import Promise, Store, stores
from ckpt_observe.core.stores.locate import locate

__all__ = ["Promise", "Store", "locate", "stores"]
