"""`import ckpt_observe.auto` observes this process with the settings of the environment.

A wrong setting is logged, and the program runs unobserved.
"""

from __future__ import annotations

from ckpt_observe.api import observe
from ckpt_observe.errors import ConfigError
from ckpt_observe.support.logs import logger

try:
    observe()
except ConfigError as error:
    logger.error("Checkpoints are not observed: %s", error)
