"""The registry loads instrumentors by name."""

import subprocess
import sys

import pytest

from ckpt_observe.errors import ConfigError
from ckpt_observe.instrument import registry


@pytest.fixture
def toy_registry(modules, monkeypatch):
    monkeypatch.setattr(registry, "INSTRUMENTORS", {"toy": "toy:ToyInstrumentor", "broken": "no_such_module:Broken"})


def test_registry_imports_no_library():
    """Importing the registry imports none of the libraries it can instrument."""
    code = "import sys; import ckpt_observe.instrument.registry; print(*{name.partition('.')[0] for name in sys.modules})"
    imported_modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "langgraph", "orbax", "jax", "lightning", "joblib"} & set(imported_modules)


def test_disabled_instrumentors_are_not_loaded(toy_registry, modules):
    """Disabled instrumentors are not loaded; unknown names in the list are ignored, because they may be meant for other packages."""
    (toy,) = registry.load(["toy"], disabled=["redis"])
    assert toy.name == "toy"
    assert registry.load(["toy"], disabled=["toy"]) == []
    assert registry.load(disabled=["*"]) == []


def test_broken_instrumentor_is_skipped(toy_registry, caplog):
    """An instrumentor that cannot be loaded is logged, and the others are loaded."""
    assert [instrumentor.name for instrumentor in registry.load()] == ["toy"]
    assert "Cannot load the instrumentor broken" in caplog.text


def test_unknown_name_is_refused(toy_registry):
    """A misspelt name raises an error that lists the available ones."""
    with pytest.raises(ConfigError, match="unknown instrumentor 'tory'; available: broken, toy"):
        registry.load(["tory"])
