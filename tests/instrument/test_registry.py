"""The registry loads instrumentors by name."""

import subprocess
import sys

import pytest

from ckpt_observe import libraries
from ckpt_observe.errors import ConfigError
from ckpt_observe.instrument import registry
from ckpt_observe.libraries import Library


@pytest.fixture
def toy_registry(modules, monkeypatch):
    monkeypatch.setattr(libraries, "LIBRARIES", TABLE)
    monkeypatch.setattr(registry, "LIBRARIES", TABLE)


TABLE = {
    "toy": Library("Toy", "toy:ToyInstrumentor", "toylib"),
    "broken": Library("Broken", "no_such_module:Broken", "toylib"),
    "general": Library("General", "toy:ToyInstrumentor", "toylib", default=False),
    "unused": Library("Unused", "no_such_module:Unused", "a_library_that_nobody_imports"),
}


def test_registry_imports_no_library():
    """Importing the registry imports none of the libraries it can instrument."""
    code = "import sys; import ckpt_observe.instrument.registry; print(*{name.partition('.')[0] for name in sys.modules})"
    imported_modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "langgraph", "orbax", "jax", "lightning", "joblib"} & set(imported_modules)


def test_disabled_instrumentors_are_not_created(toy_registry):
    """Disabled instrumentors are not created; unknown names in the list are ignored, because they may be meant for other packages."""
    assert len(registry.create_all(["toy"], disabled=["redis"])) == 1
    assert registry.create_all(["toy"], disabled=["toy"]) == []
    assert registry.create_all(["toy"], disabled=["*"]) == []


def test_instrumentor_is_loaded_when_its_library_is_imported(toy_registry, modules, caplog):
    """The library is patched although its instrumentor was not loaded before; that of a library nobody imports is never loaded."""
    toy, unused = registry.create_all(["toy", "unused"])
    original = vars(modules.lib)["save"]
    toy.instrument()
    unused.instrument()
    assert vars(modules.lib)["save"] is not original
    toy.uninstrument()
    assert vars(modules.lib)["save"] is original
    assert caplog.text == ""
    assert {report.state for report in toy.report()} == {"off"}


DURING_IMPORT = """
import sys
sys.path.insert(0, PACKAGE)
from ckpt_observe import libraries
from ckpt_observe.instrument import registry
libraries.LIBRARIES["late"] = libraries.Library("Late", "late:LateInstrumentor", "package.base")
[late] = registry.create_all(["late"])
late.instrument()
import package.main
print(type(package.main.run).__name__)
"""
LATE = """
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.targets import Target
class LateInstrumentor(Instrumentor):
    name, library = "late", "package.base"
    def targets(self):
        return [Target("package.main", "run", lambda wrapped, instance, args, kwargs: wrapped())]
"""


def test_module_that_imports_the_library_is_patched_when_it_is_complete(tmp_path):
    """A library's main module imports the module that loads the instrumentor, before it defines what is to be patched."""
    (tmp_path / "package").mkdir()
    for name, source in {"__init__": "", "base": "", "main": "import package.base\ndef run(): pass"}.items():
        (tmp_path / "package" / f"{name}.py").write_text(source)
    (tmp_path / "late.py").write_text(LATE)
    process = subprocess.run(
        [sys.executable, "-c", f"PACKAGE = {str(tmp_path)!r}\n" + DURING_IMPORT], capture_output=True, text=True, check=False
    )
    assert process.stdout.split() == ["PatchedCallable"], process.stderr


def test_broken_instrumentor_is_skipped(toy_registry, caplog):
    """An instrumentor that cannot be loaded is logged and reported, and raises nothing into the program."""
    (broken,) = registry.create_all(["broken"])
    broken.instrument()
    assert "Cannot load the instrumentor broken" in caplog.text
    assert [report.state for report in broken.report()] == ["failed"]


@pytest.mark.parametrize(
    ("setting", "selection"),
    [
        ("default", {"toy", "broken", "unused"}),
        ("", {"toy", "broken", "unused"}),
        ("default,+general,-broken", {"toy", "general", "unused"}),
        ("+general", {"toy", "broken", "general", "unused"}),
        ("-toy", {"broken", "unused"}),
        ("toy,general", {"toy", "general"}),
        ("none", set()),
        (["toy"], {"toy"}),
    ],
)
def test_setting_selects_libraries(toy_registry, setting, selection):
    """Plain names select just these; signs add to the default or remove from it. Savers of general use are added on request."""
    assert set(libraries.select(setting)) == selection


def test_unknown_name_is_refused(toy_registry):
    """A misspelt name raises an error that names the variable and the available libraries."""
    with pytest.raises(ConfigError, match=r"CKPT_OBSERVE_LIBRARIES.*tory.*toy, broken"):
        libraries.select("default,-tory")
