"""One of two ranks, which save a checkpoint together and load it. Arguments: rank, directory, phase and what happens to this rank in it."""

import json
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter

rank, directory, special_phase, event = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
warnings.simplefilter("ignore")


def happen(phase):
    if phase != special_phase:
        return
    if event == "delay":
        threading.Event().wait(4)
    elif event == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif event == "fail":
        raise OSError(28, "No space left on device")


class Planner(DefaultSavePlanner):
    def create_local_plan(self):
        happen("plan")
        return super().create_local_plan()


class Writer(FileSystemWriter):
    def write_data(self, plan, planner):
        happen("write")
        return super().write_data(plan, planner)


torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=2)
state = {f"of_rank_{rank}": torch.full((1000 * (rank + 1),), float(rank))}
path = directory / "step-100"
failures = []
try:
    dcp.save(state, storage_writer=Writer(path), planner=Planner())
    loaded = {f"of_rank_{rank}": torch.zeros(1000 * (rank + 1))}
    dcp.load(loaded, checkpoint_id=path)
    assert torch.equal(loaded[f"of_rank_{rank}"], state[f"of_rank_{rank}"])
except dcp.api.CheckpointException as error:
    failures = sorted(error.failures)
except RuntimeError as error:  # gloo: the other rank is dead
    failures = [type(error).__name__]
print(json.dumps(failures))
sys.stdout.flush()
if "kill" not in sys.argv[5:]:
    torch.distributed.destroy_process_group()
