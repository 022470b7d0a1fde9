"""Waiting for an import never makes it fail, or hang."""

import os
import subprocess
import sys

import pytest

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
from ckpt_observe.instrument.import_hooks import when_imported
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
from ckpt_observe.instrument.import_hooks import when_imported
when_imported("toylib", lambda module: print("hooked"))
found = importlib.util.find_spec("toylib")
print(isinstance(found.loader, SourceFileLoader), found.loader.get_code("toylib").co_name, found.loader.is_package("toylib"))
import toylib
print(type(toylib.__loader__) is type(toylib.__spec__.loader) is SourceFileLoader, "def save" in inspect.getsource(toylib))
"""
OTHERS = """
import sys
sys.path.insert(0, TOY)
from ckpt_observe.instrument.import_hooks import when_imported
class Asking:
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self and (found := finder.find_spec(name, path, target)):
                return found
when_imported("toylib", lambda module: print("hooked"))
sys.meta_path.insert(PLACE, Asking())
import toylib
"""
IN_ITS_PLACE = """
import sys
sys.path.insert(0, PACKAGE)
from ckpt_observe.instrument.import_hooks import when_imported
when_imported("lazy", lambda module: print(module.value))
import lazy
print(lazy.value)
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
    lines = (
        "import importlib, threading",
        "load = threading.Thread(target=importlib.import_module, args=('package.part',))",
        "load.start()",
        "load.join()",
    )
    (package / "__init__.py").write_text("\n".join(lines))
    (package / "part.py").write_text("value = 7")
    assert ran(IN_THE_MIDST, tmp_path, PACKAGE=str(tmp_path), OBSERVED=False) == (["7"], "")
    assert ran(IN_THE_MIDST, tmp_path, PACKAGE=str(tmp_path), OBSERVED=True) == (["hooked", "7"], "")


def test_a_watched_module_looks_like_any_other(tmp_path):
    """Who looks for it finds the loader that it has, with its code; once imported it has that very loader, and its source is found."""
    assert ran(LIKE_ANY_OTHER, tmp_path, TOY=str(TOY))[0] == ["True", "<module>", "True", "hooked", "True", "True"]


@pytest.mark.parametrize("place", [0, 1])
def test_finders_that_ask_each_other(tmp_path, place):
    """Another finder, before ours or after it, may ask all others as ours does: the module is found, and its hooks run."""
    assert ran(OTHERS, tmp_path, TOY=str(TOY), PLACE=place)[0] == ["hooked"]


def test_a_module_that_puts_another_in_its_place(tmp_path):
    """Hooks get the module that the program gets."""
    lines = "import sys, types", "sys.modules[__name__] = other = types.ModuleType(__name__)", "other.value = 7"
    (tmp_path / "lazy.py").write_text("\n".join(lines))
    assert ran(IN_ITS_PLACE, tmp_path, PACKAGE=str(tmp_path))[0] == ["7", "7"]


def test_a_copy_of_the_loader_is_the_modules_own(tmp_path):
    """As a program gets it that copies or pickles what it found."""
    program = LIKE_ANY_OTHER.replace("import toylib\n", "import copy, pickle\nfound = copy.deepcopy(found)\n").partition("print(type")[0]
    program += "print(type(found.loader) is type(pickle.loads(pickle.dumps(found)).loader) is SourceFileLoader)"
    assert ran(program, tmp_path, TOY=str(TOY))[0][-1] == "True"


def test_a_module_that_is_forbidden(tmp_path):
    """None in its place makes an import of it fail. That is no module to patch, and no hook is lost when it may be imported again."""
    program = "import sys\nsys.modules['toylib'] = None\n" + UNOBSERVED.replace("import toylib", "del sys.modules['toylib']\nimport toylib")
    assert ran(program, tmp_path, TOY=str(TOY), BROKEN=False) == (["PatchedCallable"], "")
