"""The format `arrays` with torch tensors."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer

pytestmark = pytest.mark.libraries


@pytest.fixture
def torch():
    pytest.importorskip("numpy")
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_round_trip(tmp_path, torch, dtype):
    """Tensors are loaded as tensors with the same type, shape and values; torch's random generator is not advanced."""
    state = {
        "model": {"weight": torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)), "scalar": torch.tensor(1).to(getattr(torch, dtype))},
        "step": 1,
    }
    checkpointer = Checkpointer(tmp_path, format="arrays")
    generator = torch.get_rng_state()
    checkpointer.save("train", state)
    loaded = checkpointer.load("train")
    assert torch.equal(torch.get_rng_state(), generator)
    for name, tensor in state["model"].items():
        assert loaded["model"][name].dtype == tensor.dtype
        assert torch.equal(loaded["model"][name], tensor)


def test_training_continues(tmp_path, torch):
    """A model and its optimizer restored into new objects continue exactly like the originals."""

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return model

    def create():
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = create()
    train(model, optimizer, 3)
    checkpointer = Checkpointer(tmp_path, format="arrays")
    checkpointer.save("train", {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}, step=3)
    restored = checkpointer.restore("train")
    other, other_optimizer = create()
    other.load_state_dict(restored.state["model"])
    other_optimizer.load_state_dict(restored.state["optimizer"])
    train(model, optimizer, 2)
    train(other, other_optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
