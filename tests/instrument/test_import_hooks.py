"""An import hook never makes an import fail or hang."""

import os
import subprocess
import sys

import pytest

from tests.instrument.conftest import TOY

WITHOUT_WRAPT = """
import sys
sys.path.insert(0, TOY)
import toy
toy.ToyInstrumentor().instrument()
if BROKEN:
    sys.modules["wrapt"] = None
import toylib
print(type(toylib.save).__name__)
"""
NESTED_IMPORT = """
import sys
from ckpt_observe.instrument.import_hooks import when_imported
if OBSERVED:
    when_imported("package.part", lambda module: print("hooked"))
sys.path.insert(0, PACKAGE)
import package
print(package.part.value)
"""
INSPECT_MODULE = """
import importlib.util, inspect, sys
from importlib.machinery import SourceFileLoader
sys.path.insert(0, TOY)
from ckpt_observe.instrument.import_hooks import when_imported
when_imported("toylib", lambda module: print("hooked"))
spec = importlib.util.find_spec("toylib")
print(isinstance(spec.loader, SourceFileLoader), spec.loader.get_code("toylib").co_name, spec.loader.is_package("toylib"))
import toylib
print(type(toylib.__loader__) is type(toylib.__spec__.loader) is SourceFileLoader, "def save" in inspect.getsource(toylib))
"""
CALLING_FINDER = """
import sys
sys.path.insert(0, TOY)
from ckpt_observe.instrument.import_hooks import when_imported
class CallingFinder:
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                return spec
when_imported("toylib", lambda module: print("hooked"))
sys.meta_path.insert(POSITION, CallingFinder())
import toylib
"""
REPLACED_MODULE = """
import sys
sys.path.insert(0, PACKAGE)
from ckpt_observe.instrument.import_hooks import when_imported
when_imported("lazy", lambda module: print(module.value))
import lazy
print(lazy.value)
"""

WARNING_MODULE = """
import sys
sys.path.insert(0, PACKAGE)
from ckpt_observe.instrument.import_hooks import when_imported
if OBSERVED:
    when_imported("warning", lambda module: print("hooked"))
import importing
"""
LATE_HOOK = """
import sys
sys.path.insert(0, PACKAGE)
from ckpt_observe.instrument.import_hooks import when_imported
def wait_for_main(base):
    when_imported("package.main", lambda module: print("main", hasattr(module, "run")))
when_imported("package.base", wait_for_main, WATCHED)
import package.main
"""


def run(program, state, **values):
    """Run a program with these constants. Return the words it printed, and stderr. If it hangs, it dumps its threads and fails."""
    watchdog = "import faulthandler; faulthandler.dump_traceback_later(60, exit=True)\n"
    constants = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_EXPORTERS": "none"}
    process = subprocess.run(
        [sys.executable, "-c", watchdog + constants + program], env=environ, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split(), process.stderr


def test_module_is_imported_unobserved_without_wrapt(tmp_path):
    """If wrapt cannot be imported, the module is imported unobserved and a warning is logged; otherwise nothing is logged."""
    output, errors = run(WITHOUT_WRAPT, tmp_path, TOY=str(TOY), BROKEN=True)
    assert output == ["function"]
    assert "toylib is not observed" in errors
    assert run(WITHOUT_WRAPT, tmp_path, TOY=str(TOY), BROKEN=False) == (["PatchedCallable"], "")


def test_submodule_imported_by_a_thread_during_the_import_of_its_package(tmp_path):
    """While a package is imported, it may wait for a thread that imports a submodule, observed or not."""
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
    assert run(NESTED_IMPORT, tmp_path, PACKAGE=str(tmp_path), OBSERVED=False) == (["7"], "")
    assert run(NESTED_IMPORT, tmp_path, PACKAGE=str(tmp_path), OBSERVED=True) == (["hooked", "7"], "")


def test_hook_for_a_module_that_is_running(tmp_path):
    """A module whose import leads to the hook is complete when its own hook runs. Control: outside a watched package it is not."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").touch()
    (package / "main.py").write_text("import package.base\ndef run(): pass")
    assert run(LATE_HOOK, tmp_path, PACKAGE=str(tmp_path), WATCHED="package") == (["main", "True"], "")
    assert run(LATE_HOOK, tmp_path, PACKAGE=str(tmp_path), WATCHED="") == (["main", "False"], "")


def test_warning_is_attributed_to_the_importing_module(tmp_path):
    """A warning about an import names the module that imports, observed or not; programs filter warnings by that."""
    (tmp_path / "importing.py").write_text("import warning")
    (tmp_path / "warning.py").write_text("import warnings\nwarnings.warn('deprecated', FutureWarning, stacklevel=2)")
    bare, observed = (run(WARNING_MODULE, tmp_path, PACKAGE=str(tmp_path), OBSERVED=observed) for observed in (False, True))
    assert f"{tmp_path / 'importing.py'}:1: FutureWarning: deprecated" in bare[1]
    assert observed == (["hooked"], bare[1])


def test_watched_module_has_its_normal_loader(tmp_path):
    """`find_spec` returns the usual loader with its code; after the import, the module has that loader, and its source is available."""
    assert run(INSPECT_MODULE, tmp_path, TOY=str(TOY))[0] == ["True", "<module>", "True", "hooked", "True", "True"]


@pytest.mark.parametrize("position", [0, 1])
def test_finders_that_call_each_other(tmp_path, position):
    """If another finder, before or after ours, calls all finders as ours does, the module is imported and its hooks run."""
    assert run(CALLING_FINDER, tmp_path, TOY=str(TOY), POSITION=position)[0] == ["hooked"]


def test_module_that_replaces_itself_in_sys_modules(tmp_path):
    """Hooks receive the module that the program receives."""
    lines = "import sys, types", "sys.modules[__name__] = other = types.ModuleType(__name__)", "other.value = 7"
    (tmp_path / "lazy.py").write_text("\n".join(lines))
    assert run(REPLACED_MODULE, tmp_path, PACKAGE=str(tmp_path))[0] == ["7", "7"]


def test_copied_spec_has_the_original_loader(tmp_path):
    """A copied or pickled spec has the normal loader, not ours."""
    program = INSPECT_MODULE.replace("import toylib\n", "import copy, pickle\nspec = copy.deepcopy(spec)\n").partition("print(type")[0]
    program += "print(type(spec.loader) is type(pickle.loads(pickle.dumps(spec)).loader) is SourceFileLoader)"
    assert run(program, tmp_path, TOY=str(TOY))[0][-1] == "True"


def test_module_that_is_none_in_sys_modules(tmp_path):
    """None in `sys.modules` forbids an import. It is not patched, and the hooks run when the module is imported later."""
    program = "import sys\nsys.modules['toylib'] = None\n" + WITHOUT_WRAPT.replace(
        "import toylib", "del sys.modules['toylib']\nimport toylib"
    )
    assert run(program, tmp_path, TOY=str(TOY), BROKEN=False) == (["PatchedCallable"], "")
