"""The contract of the instrumentors of training libraries."""

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


class TestTorch(InstrumentorContract):
    instrumentor = "all_of_training:AllOfTorch"
    use = (
        "import io, tempfile, warnings, torch, torch.distributed.checkpoint as dcp; warnings.simplefilter('ignore')\n"
        "file = io.BytesIO(); torch.save([1], file); file.seek(0); assert torch.load(file) == [1]\n"
        "state, path = {'w': torch.ones(3)}, tempfile.mkdtemp()\n"
        "dcp.save(state, checkpoint_id=path)\n"
        "dcp.load(state, checkpoint_id=path)"
    )


class TestTrainers(InstrumentorContract):
    """Transformers, Accelerate and both packages of Lightning."""

    instrumentor = "all_of_training:Trainers"
    use = (
        "import pathlib, tempfile, warnings, torch; warnings.simplefilter('ignore'); torch.set_num_threads(1)\n"
        "import accelerate, lightning.pytorch, pytorch_lightning, tiny_lightning, tiny_trainer\n"
        "directory = pathlib.Path(tempfile.mkdtemp())\n"
        "tiny_trainer.create_trainer(directory / 'a', 2).train()\n"
        "tiny_trainer.create_trainer(directory / 'a', 4).train(resume_from_checkpoint=True)\n"
        "accelerator = accelerate.Accelerator(cpu=True); accelerator.prepare(torch.nn.Linear(2, 2))\n"
        "accelerator.save_state(directory / 'b'); accelerator.load_state(directory / 'b')\n"
        "tiny_lightning.create_trainer(directory / 'c').fit(tiny_lightning.TinyModule())"
    )


class TestJax(InstrumentorContract):
    """Orbax, and Keras with JAX."""

    instrumentor = "all_of_training:AllOfJax"
    use = (
        "import pathlib, tempfile, warnings, numpy, keras, orbax.checkpoint as ocp; warnings.simplefilter('ignore')\n"
        "directory = pathlib.Path(tempfile.mkdtemp())\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]); model.compile('sgd', 'mse')\n"
        "backup = keras.callbacks.BackupAndRestore(directory / 'backup')\n"
        "model.fit(numpy.ones((4, 3)), numpy.ones((4, 1)), verbose=0, callbacks=[backup])\n"
        "model.save(directory / 'a.keras'); keras.saving.load_model(directory / 'a.keras')\n"
        "with ocp.CheckpointManager(directory / 'b') as manager:\n"
        "    manager.save(0, args=ocp.args.StandardSave({'w': numpy.ones(3)})); manager.wait_until_finished()\n"
        "    manager.restore(0, args=ocp.args.StandardRestore())"
    )
