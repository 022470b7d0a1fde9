"""Saves with Orbax to a small file system, until it is full. Argument: its directory."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

directory = Path(sys.argv[1])
warnings.simplefilter("ignore")
noise = np.random.default_rng(7)  # what cannot be compressed
small, large = {"w": noise.random(100)}, {"w": noise.random(1_000_000)}
returned = []
manager = ocp.CheckpointManager(directory)
for step, state in enumerate((small, large, small), 1):
    returned.append(manager.save(step, args=ocp.args.StandardSave(state)))
    try:
        manager.wait_until_finished()
    except Exception:  # make room
        for path in directory.glob(f"{step}*"):
            shutil.rmtree(path)
manager.close()
print(json.dumps(returned))
