"""Imported at startup by every Python process under `ckpt-observe run`: starts recording, then runs the site's own sitecustomize."""

import importlib.machinery
import importlib.util
import os
import sys

_directory = os.path.dirname(os.path.abspath(__file__))

try:
    import ckpt_observe.auto  # noqa: F401
except Exception as error:
    print(f"ckpt-observe: checkpoint operations are not recorded: {error}", file=sys.stderr)

_site_module = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _directory]
)
if _site_module is not None and _site_module.loader is not None:
    _site_module.loader.exec_module(importlib.util.module_from_spec(_site_module))
