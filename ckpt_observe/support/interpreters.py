"""Whether code runs in the main interpreter of a process, or in one of several that C programs such as mod_wsgi create."""

from __future__ import annotations

import _thread
from importlib import import_module
from typing import Final

UNOBSERVED: Final = (
    "this is not the main interpreter of its process, and Python aborts the process if another one ends while a thread of ours runs;"
    " with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}"
)
"""Why a program in a subinterpreter is not observed."""


def is_main_interpreter() -> bool:
    """Return whether this is the main interpreter."""
    check = getattr(_thread, "_is_main_interpreter", None)  # since Python 3.12
    if check is not None:
        return bool(check())
    try:
        interpreters = import_module("_xxsubinterpreters")
    except ImportError:  # this Python has no others
        return True
    return bool(interpreters.get_current() == interpreters.get_main())
