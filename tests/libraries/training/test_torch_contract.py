"""The contract of the instrumentors of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The scenarios import the instrumentor from this directory."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])


class TestContract(InstrumentorContract):
    instrumentor = "all_of_torch:AllOfTorch"
    use = (
        "import io, tempfile, warnings, torch, torch.distributed.checkpoint as dcp; warnings.simplefilter('ignore')\n"
        "file = io.BytesIO(); torch.save([1], file); file.seek(0); assert torch.load(file) == [1]\n"
        "state, path = {'w': torch.ones(3)}, tempfile.mkdtemp()\n"
        "dcp.save(state, checkpoint_id=path)\n"
        "dcp.load(state, checkpoint_id=path)"
    )
