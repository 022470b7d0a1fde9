"""`import ckpt_observe.auto` observes this process with the settings of the environment. It never raises an error of ours.

If a setting of one exporter is wrong, that exporter is left out, with a warning. If another setting is wrong, or something of ours cannot
be imported or started, the reason is logged and the program runs unobserved.
"""

from __future__ import annotations

from ckpt_observe.errors import ConfigError
from ckpt_observe.record.guard import record_fault
from ckpt_observe.support.interpreters import UNOBSERVED, is_main_interpreter
from ckpt_observe.support.logs import log_error

try:
    if is_main_interpreter():
        from ckpt_observe.api import observe_environment

        observe_environment()
    else:  # nothing more is imported: Python 3.12 crashes if several interpreters import the same extension module
        log_error("Checkpoints are not observed: %s", UNOBSERVED)
except ConfigError as error:
    log_error("Checkpoints are not observed: %s", error)
except Exception as error:
    record_fault(error)
