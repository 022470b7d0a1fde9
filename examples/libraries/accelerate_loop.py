"""Observe a training loop with Accelerate. Run `python examples/libraries/accelerate_loop.py`, then `ckpt-observe traces`."""

import tempfile
from pathlib import Path

import ckpt_observe

watch = ckpt_observe.observe(service="accelerate-loop")

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

with tempfile.TemporaryDirectory() as directory, ckpt_observe.task("train", id="run-42"):
    for step in range(1, 11):
        accelerator.backward(model(torch.ones(8, 4)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            accelerator.save_state(str(Path(directory) / f"step-{step}"))
    accelerator.load_state(str(Path(directory) / "step-5"))
watch.close()
