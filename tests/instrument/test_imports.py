"""Waiting for an import never makes it fail."""

import subprocess
import sys

from tests.instrument.conftest import TOY

PROGRAM = """
import sys
from ckpt_observe.instrument.imports import when_imported
when_imported("toylib", lambda module: print("hooked"))
if sys.argv[1] == "broken":
    sys.modules["wrapt"] = None
import toylib
print(toylib.__name__)
"""


def said(wrapt):
    """Standard output of a program that waits for a module and imports it, and whether it complained."""
    run = [sys.executable, "-c", PROGRAM, wrapt]
    done = subprocess.run(run, env={"PYTHONPATH": str(TOY)}, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split(), "toylib is not observed" in done.stderr


def test_without_wrapt():
    """Where wrapt cannot be imported the module is, unobserved, and that is said; where it can, nothing is."""
    assert said("broken") == (["toylib"], True)
    assert said("whole") == (["hooked", "toylib"], False)
