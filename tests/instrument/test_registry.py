"""Names of instrumentors, loaded when asked for."""

import subprocess
import sys

import pytest

from ckpt_observe.errors import ConfigError
from ckpt_observe.instrument import registry


@pytest.fixture
def listed(world, monkeypatch):
    monkeypatch.setattr(registry, "INSTRUMENTORS", {"toy": "toy:ToyInstrumentor", "broken": "no_such_module:Broken"})


def test_registry_imports_nobody():
    """To import the registry is to import no library that it could instrument."""
    code = "import sys; import ckpt_observe.instrument.registry; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "langgraph", "orbax", "jax", "lightning", "joblib"} & set(loaded)


def test_all_but_the_disabled(listed, world):
    """Disabled names are left out, unknown ones among them are somebody else's."""
    (toy,) = registry.load(["toy"], disabled=["redis"])
    assert toy.name == "toy"
    assert registry.load(["toy"], disabled=["toy"]) == []
    assert registry.load(disabled=["*"]) == []


def test_broken_instrumentor_is_left_out(listed, caplog):
    """One that cannot be loaded is logged; the others are there."""
    assert [made.name for made in registry.load()] == ["toy"]
    assert "Cannot load the instrumentor broken" in caplog.text


def test_unknown_name_is_refused(listed):
    """A misspelt name says which there are."""
    with pytest.raises(ConfigError, match="unknown instrumentor 'tory'; available: broken, toy"):
        registry.load(["tory"])
