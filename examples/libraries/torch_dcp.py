"""Observe distributed checkpoints (DCP) of two ranks. Run `python examples/libraries/torch_dcp.py`, then `ckpt-observe traces`."""

import multiprocessing
import tempfile
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp

import ckpt_observe


def train(rank: int, directory: str) -> None:
    """Save a part of the model in the background, as one of two ranks."""
    watch = ckpt_observe.observe(service="torch-dcp")
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=2)
    state = {f"layer-{rank}": torch.ones(1000)}
    future = dcp.async_save(state, checkpoint_id=Path(directory) / "step-100")
    future.result()  # a real program trains on, and waits before the next save
    dcp.load(state, checkpoint_id=Path(directory) / "step-100")
    torch.distributed.destroy_process_group()
    watch.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=train, args=(rank, directory)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
