"""What grew since the last save, and what a load brought back, with real libraries and, for files, in different processes."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric import Fabric
from tiny_lightning import TinyModule, create_trainer
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from ckpt_observe.instrument.lightning import LightningInstrumentor
from ckpt_observe.instrument.torch_distributed import TorchDistributedInstrumentor
from ckpt_observe.instrument.torch_files import TorchInstrumentor
from ckpt_observe.record.guard import faults
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]
ALTERED = (names.ALTERED_KEYS, names.ALTERED_TYPES, names.ALTERED_CONTENTS)


@pytest.fixture
def instrument(recording):
    """A function that instruments a library for the test."""
    instrumentors = []

    def start(instrumentor):
        instrumentor.instrument()
        instrumentors.append(instrumentor)

    yield start
    for instrumentor in instrumentors:
        instrumentor.uninstrument()


def load_and_compare(observation, directory, digests):
    """Load the files in a new process. Return the altered attributes of the loads with torch and safetensors, and the number of digests."""
    earlier_ids = {span.span_id for span in observation.spans()}
    observation.run("compared_files.py", "load", directory, CKPT_OBSERVE_TENSOR_DIGESTS=digests)
    loads = [span for span in observation.spans().operations("load") if span.span_id not in earlier_ids]
    by_system = {span.attributes[names.SYSTEM]: span.attributes for span in loads}
    return [
        *([attributes.get(name) for name in ALTERED] for attributes in (by_system["torch"], by_system["safetensors"])),
        {attributes.get(names.TENSOR_DIGESTS) for attributes in by_system.values()},
    ]


def test_file_that_is_not_what_was_saved(observation, tmp_path):
    """A load in another process names the tensors that differ: by type always, by content with digests. A control differs in nothing."""
    observation.run("compared_files.py", "save", tmp_path, CKPT_OBSERVE_TENSOR_DIGESTS="true")
    assert load_and_compare(observation, tmp_path, "true") == [[None, None, None], [None, None, None], {4}]
    observation.run("compared_files.py", "change", tmp_path, observed=False)
    types = ["float32[100,100] -> float16[100,100]"]
    keys, contents = ["layer.1.weight", "layer.2.weight", "layer.3.weight"], ["layer.3.weight"]
    in_model = [f"model.{key}" for key in keys]
    assert load_and_compare(observation, tmp_path, "true") == [[in_model, types, in_model[2:]], [keys, types, contents], {3}]
    assert load_and_compare(observation, tmp_path, "false") == [[in_model[:2], types, None], [keys[:2], types, None], {None}]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(instrument, operations, tmp_path, layout):
    """A tensor without a shape, or with a symbolic one, that is the same in no two processes, is described and not an error of ours."""
    instrument(TorchInstrumentor())
    faults_before = faults.total()
    state = {"nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout), "w": torch.ones(5), "step": 4}
    torch.save(state, tmp_path / "a.pt")
    [save] = operations()
    assert (save[names.TENSORS], save[names.STEP], faults.total()) == (2, 4, faults_before)


def test_growth_across_processes(observation, tmp_path):
    """A key that grew since the save of an earlier step, in another process, is named with its bytes; the other key is not."""
    program = tmp_path / "grow.py"
    program.write_text(
        "import sys, torch\n"
        "step = int(sys.argv[1])\n"
        "torch.save({'model': torch.zeros(1000), 'replay': torch.zeros(100 * step)}, f'{sys.argv[2]}/step-{step}.pt')\n"
    )
    for step in (1, 3):
        observation.run(program, step, tmp_path)
    first, second = sorted(observation.spans().operations("save"), key=lambda span: span.start_unix_nano)
    assert names.GROWN_KEYS not in first.attributes
    grown = dict(zip(second.attributes[names.GROWN_KEYS], second.attributes[names.GROWN_SIZES], strict=True))
    assert (grown["replay"], max(grown, key=grown.get), "model" in grown) == (800, "replay", False)


def test_types_that_dcp_converts(instrument, operations, tmp_path):
    """A load into tensors of another type is named; the control into the same types is not. So are keys that a partial load leaves."""
    instrument(TorchDistributedInstrumentor())
    seed = random.randrange(2**32)
    print("seed", seed)
    keys = ["w", "b", "c"]
    converted = random.Random(seed).choice(keys)
    dcp.save({"model": {key: torch.ones(3) for key in keys}, "step": 1}, checkpoint_id=tmp_path / "a")
    loaded = {"model": {key: torch.zeros(3) for key in keys}, "step": 0}
    dcp.load(loaded, checkpoint_id=tmp_path / "a")
    dcp.load({"model": {"w": torch.zeros(3)}}, checkpoint_id=tmp_path / "a")
    dcp.load({"model": {**loaded["model"], converted: torch.zeros(3, dtype=torch.bfloat16)}}, checkpoint_id=tmp_path / "a")
    partial_load = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load({"model": {**loaded["model"], "new": torch.zeros(3)}}, checkpoint_id=tmp_path / "a", planner=partial_load)
    _, same, part, other, new = operations()
    assert same[names.COMPARED] is True
    assert names.ALTERED_KEYS not in same
    assert names.ALTERED_KEYS not in part, "the program asked for one tensor only"
    assert (other[names.ALTERED_KEYS], other[names.ALTERED_TYPES]) == ([f"model.{converted}"], ["float32[3] -> bfloat16[3]"])
    assert (new[names.ALTERED_KEYS], new[names.OUTCOME]) == (["model.new"], "ok")


def test_types_that_load_state_dict_converts(instrument, operations, tmp_path):
    """A model of another type gets converted parameters without a warning; they are named. The same model is the control."""
    instrument(LightningInstrumentor())
    create_trainer(tmp_path).fit(TinyModule())
    TinyModule.load_from_checkpoint(tmp_path / "step=2.ckpt")

    class HalfModule(TinyModule):
        def __init__(self):
            super().__init__()
            self.half()

    HalfModule.load_from_checkpoint(tmp_path / "step=2.ckpt")
    *_, same, converted = [each for each in operations() if each[names.OPERATION] == "load"]
    assert names.ALTERED_KEYS not in same
    assert converted[names.ALTERED_KEYS] == ["layer.bias", "layer.weight"]
    assert converted[names.ALTERED_TYPES] == ["float32 -> float16"]


def test_keys_of_lightning_checkpoints(instrument, operations, tmp_path):
    """A checkpoint of a Trainer or of Fabric has the bytes of its top-level keys, from which growth is computed."""
    instrument(LightningInstrumentor())
    create_trainer(tmp_path).fit(TinyModule())
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.save(tmp_path / "fabric.ckpt", {"model": torch.nn.Linear(4, 1), "step": 1})
    trainer_save, fabric_save = [
        dict(zip(each[names.KEY_NAMES], each[names.KEY_SIZES], strict=True)) for each in operations() if each[names.OPERATION] == "save"
    ]
    assert trainer_save["state_dict"] == fabric_save["model"] == 4 * (4 + 1)
    assert trainer_save["optimizer_states"] >= 2 * 4 * (4 + 1)


@pytest.mark.parametrize("digests", [True, False])
def test_nothing_is_changed(instrument, tmp_path, monkeypatch, digests):
    """Digests change neither the tensors nor the state of any random generator."""
    monkeypatch.setattr(recorder, "tensor_digests", digests)
    instrument(TorchInstrumentor())
    state = {"w": torch.randn(5000), "view": torch.randn(100, 100).t(), "leaf": torch.nn.Parameter(torch.randn(10))}
    before = {name: tensor.clone() for name, tensor in state.items()}
    generators = torch.get_rng_state(), random.getstate()
    torch.save(state, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt")
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert all(torch.equal(loaded[name], before[name]) and torch.equal(state[name], before[name]) for name in state)
