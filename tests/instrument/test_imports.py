"""Waiting for an import never makes it fail, or hang."""

import os
import subprocess
import sys

from tests.instrument.conftest import TOY

UNOBSERVED = """
import sys
sys.path.insert(0, TOY)
import toy
toy.ToyInstrumentor().instrument()
if BROKEN:
    sys.modules["wrapt"] = None
import toylib
print(type(toylib.save).__name__)
"""
IN_THE_MIDST = """
import sys
from ckpt_observe.instrument.imports import when_imported
if OBSERVED:
    when_imported("package.part", lambda module: print("hooked"))
sys.path.insert(0, PACKAGE)
import package
print(package.part.value)
"""
LIKE_ANY_OTHER = """
import importlib.util, inspect, sys
from importlib.machinery import SourceFileLoader
sys.path.insert(0, TOY)
from ckpt_observe.instrument.imports import when_imported
when_imported("toylib", lambda module: print("hooked"))
found = importlib.util.find_spec("toylib")
print(isinstance(found.loader, SourceFileLoader), found.loader.get_code("toylib").co_name, found.loader.is_package("toylib"))
import toylib
print(type(toylib.__loader__) is type(toylib.__spec__.loader) is SourceFileLoader, "def save" in inspect.getsource(toylib))
"""


def ran(program, state, **values):
    """What a program said, and its errors. A program that hangs ends the test, with what each thread was at."""
    watch = "import faulthandler; faulthandler.dump_traceback_later(60, exit=True)\n"
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_EXPORTERS": "none"}
    done = subprocess.run([sys.executable, "-c", watch + given + program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_without_wrapt(tmp_path):
    """Where wrapt cannot be imported the module is, unobserved, and that is said; where it can, nothing is."""
    said, errors = ran(UNOBSERVED, tmp_path, TOY=str(TOY), BROKEN=True)
    assert said == ["function"]
    assert "toylib is not observed" in errors
    assert ran(UNOBSERVED, tmp_path, TOY=str(TOY), BROKEN=False) == (["PatchedCallable"], "")


def test_a_part_is_imported_while_its_package_is(tmp_path):
    """A package may wait, in the midst of its own import, for a thread that imports a part of it: observed or not."""
    package = tmp_path / "package"
    package.mkdir()
    lines = "import importlib, threading", "load = threading.Thread(target=importlib.import_module, args=('package.part',))", "load.start()", "load.join()"
    (package / "__init__.py").write_text("\n".join(lines))
    (package / "part.py").write_text("value = 7")
    assert ran(IN_THE_MIDST, tmp_path, PACKAGE=str(tmp_path), OBSERVED=False) == (["7"], "")
    assert ran(IN_THE_MIDST, tmp_path, PACKAGE=str(tmp_path), OBSERVED=True) == (["hooked", "7"], "")


def test_a_watched_module_looks_like_any_other(tmp_path):
    """Who looks for it finds the loader that it has, with its code; once imported it has that very loader, and its source is found."""
    assert ran(LIKE_ANY_OTHER, tmp_path, TOY=str(TOY))[0] == ["True", "<module>", "True", "hooked", "True", "True"]
