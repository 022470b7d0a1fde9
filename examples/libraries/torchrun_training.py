"""Train with two ranks, one of which is slow to save: see docs/training.md. The program does not know that it is observed.

Run `ckpt-observe run -- torchrun --nproc-per-node 2 examples/libraries/torchrun_training.py DIRECTORY`, then `ckpt-observe traces`.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter


class SlowDisk(FileSystemWriter):
    """Stands for the disk of a node that is slower than the others."""

    def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
        """Write the data of this rank, later."""
        time.sleep(1.5)
        return super().write_data(plan, planner)


directory, slow_rank = Path(sys.argv[1]), int(os.environ.get("SLOW_RANK", "-1"))
dist.init_process_group("gloo")
rank = dist.get_rank()
state = {f"layer-{rank}": torch.zeros(1_000_000), "step": 0}
writer_class = SlowDisk if rank == slow_rank else FileSystemWriter

for step in (100, 200):
    state[f"layer-{rank}"] += 1  # the training
    state["step"] = step
    dcp.save(state, storage_writer=writer_class(directory / f"step-{step}"))

state["step"] = 300
future = dcp.async_save(state, storage_writer=writer_class(directory / "step-300"))  # the training goes on
future.result()
dcp.load(state, checkpoint_id=directory / "step-300")
dist.destroy_process_group()
