"""One import turns every checkpoint operation of a program into a trace and into metrics.

Importing this package does nothing: no thread, no file, no provider. `import ckpt_observe.auto`, or `observe()`, starts it.
"""

from ckpt_observe.api import Watch, observe
from ckpt_observe.errors import CkptObserveError, ConfigError
from ckpt_observe.scopes import checkpoint, phase, task

__all__ = ["CkptObserveError", "ConfigError", "Watch", "checkpoint", "observe", "phase", "task"]
__version__ = "0.1.0"
