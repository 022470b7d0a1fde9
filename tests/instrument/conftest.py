import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

TOY = Path(__file__).parent / "toy"


@pytest.fixture(scope="session", autouse=True)
def toy_on_path():
    sys.path.insert(0, str(TOY))
    yield
    sys.path.remove(str(TOY))


@pytest.fixture
def modules():
    """Import the toy library (`modules.lib`) and its instrumentor (`modules.toy`) anew for each test."""

    def unload():
        for name in [name for name in sys.modules if name.partition(".")[0] in ("toylib", "toy")]:
            del sys.modules[name]

    unload()
    yield SimpleNamespace(lib=importlib.import_module("toylib"), toy=importlib.import_module("toy"))
    unload()
