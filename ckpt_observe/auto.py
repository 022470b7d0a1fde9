"""`import ckpt_observe.auto`: everything on, from the environment. A wrong setting is logged, and the program runs unobserved."""

from __future__ import annotations

from ckpt_observe.api import observe
from ckpt_observe.errors import ConfigError
from ckpt_observe.record.guard import logger

try:
    observe()
except ConfigError as error:
    logger.error("ckpt_observe: not observing: %s", error)
