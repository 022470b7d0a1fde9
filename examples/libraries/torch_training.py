"""Observe torch.save and safetensors. Run `python examples/libraries/torch_training.py`, then `ckpt-observe traces`."""

import tempfile
from pathlib import Path

import ckpt_observe

watch = ckpt_observe.observe(service="torch-training", libraries="default,+numpy")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.AdamW(model.parameters())
with tempfile.TemporaryDirectory() as name, ckpt_observe.task("train", id="run-42"):
    directory = Path(name)
    for step in range(1, 3):
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step}
        torch.save(state, directory / f"step-{step}.pt")
    assert torch.load(directory / "step-2.pt")["global_step"] == 2
    save_file(model.state_dict(), directory / "model.safetensors")
    assert load_file(directory / "model.safetensors").keys() == model.state_dict().keys()
    np.save(directory / "losses.npy", np.zeros(2))
watch.close()
