"""Creates the files of training libraries, and expected.json with what the libraries themselves say about them.

Run it in an environment with the packages of .ci/libraries.d/training.txt, joblib 1.6.0 and keras 3.15.1: python make_training.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import jax.numpy as jnp
import joblib
import keras
import numpy as np
import orbax.checkpoint as orbax
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp


def state() -> dict[str, torch.Tensor]:
    return {
        "layer.weight": torch.arange(64, dtype=torch.float32).reshape(8, 8),
        "layer.bias": torch.zeros(8, dtype=torch.bfloat16),
        "mask": torch.ones(3, dtype=torch.bool),
        "step": torch.tensor(7),
    }


def arrays() -> dict[str, object]:
    return {"a": np.arange(200.0), "b": {"c": np.zeros((3, 4), "i4"), "d": [1, 2, 3]}, "text": "x" * 50, "o": np.array(["x", None])}


def describe(tensors: dict[str, torch.Tensor]) -> dict[str, list[object]]:
    return {name: [str(value.dtype).removeprefix("torch."), list(value.shape), value.nbytes] for name, value in tensors.items()}


def main(directory: Path) -> None:
    shutil.rmtree(directory / "dcp", ignore_errors=True)
    shutil.rmtree(directory / "orbax", ignore_errors=True)
    torch.save({"model": state(), "epoch": 3}, directory / "torch.pt")
    torch.save({"model": state(), "epoch": 3}, directory / "legacy.pt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(state(), directory / "model.safetensors", {"format": "pt"})
    dcp.save({"model": state(), "epoch": 3}, checkpoint_id=directory / "dcp", no_dist=True)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save((directory / "orbax").absolute(), {"params": {"w": jnp.zeros((4, 8)), "b": jnp.zeros(8)}, "step": 7})
    np.savez(directory / "arrays.npz", a=np.arange(20.0), b=np.zeros((2, 3), "i4"))
    np.savez_compressed(directory / "compressed.npz", a=np.arange(20.0), b=np.zeros((2, 3), "i4"))
    np.save(directory / "array.npy", np.zeros((2, 3), "f4"))
    for protocol in (0, 2, 5):
        (directory / f"protocol{protocol}.pkl").write_bytes(pickle.dumps(arrays(), protocol=protocol))
    joblib.dump(arrays(), directory / "plain.joblib")
    for method in ("zlib", "bz2", "xz"):
        joblib.dump(arrays(), directory / f"{method}.joblib", compress=(method, 3))
    keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)]).save(directory / "model.keras")
    versions = {module.__name__: module.__version__ for module in (torch, safetensors, orbax, np, joblib, keras)}
    expected = {"versions": versions, "tensors": describe(state())}
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
