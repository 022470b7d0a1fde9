"""One import turns every checkpoint operation of a program into a trace and into metrics.

Importing this package does nothing: no thread, no file, no provider. `import ckpt_observe.auto`, or `observe()`, starts it.
"""

__version__ = "0.1.0"
