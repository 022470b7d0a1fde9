"""Imported by every Python that `ckpt-observe run` starts: observes it, then lets the site's own sitecustomize have its turn."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))

try:
    import ckpt_observe.auto  # noqa: F401
except Exception as error:
    print(f"ckpt-observe: not observing: {error}", file=sys.stderr)

_other = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _here])
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
