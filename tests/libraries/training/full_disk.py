"""Saves with torch.save and `async_save` to a small file system, until it is full. Argument: its directory."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

directory = Path(sys.argv[1])
warnings.simplefilter("ignore")
small, large = {"w": torch.zeros(100)}, {"w": torch.zeros(2_000_000)}
returned = []
for step, state in enumerate((small, large, small), 1):
    future = dcp.async_save(state, checkpoint_id=directory / f"step-{step}")
    returned.append(step)
    error = future.exception()
    if error is not None:  # make room
        for file in (directory / f"step-{step}").iterdir():
            file.unlink()
try:
    torch.save(large, directory / "large.pt")
except RuntimeError:
    returned.append("RuntimeError")
print(json.dumps(returned))
