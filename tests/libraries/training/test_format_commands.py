"""The commands with files that the installed training libraries wrote. The table of outcomes is in `tests/cli/format_commands.py`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as orbax
import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))

from format_commands import Checkpoints, check_changes, check_commands, run

__all__ = ["run"]

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]  # those of the libraries


def tensors(step):
    """Weights that change with each step, and a tensor that only the second has."""
    extra = {"extra": torch.ones(3)} if step > 1 else {}
    return {"weight": torch.arange(64.0).reshape(8, 8) * step, "bias": torch.zeros(8), **extra}


def arrays(step):
    return {name: value.numpy() for name, value in tensors(step).items()}


def save_orbax(path, step, *, is_ocdbt):
    with orbax.Checkpointer(orbax.PyTreeCheckpointHandler(use_ocdbt=is_ocdbt)) as checkpointer:
        checkpointer.save(path, {name: jnp.asarray(value) for name, value in arrays(step).items()})


def save_keras(path, step):
    keras.utils.set_random_seed(step)
    keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2 * step)]).save(path)


def save_pickle(path, step):
    path.write_bytes(pickle.dumps(arrays(step)))


CHANGED_AND_ADDED = {("weight", "changed"), ("extra", "added")}
ADDED = {("extra", "added")}
"""Without a digest, values of the same type and shape may differ: `diff` counts them as unclear."""
FORMATS = {
    "model.pt": ("torch", "weight", lambda path, step: torch.save(tensors(step), path), CHANGED_AND_ADDED),
    "model.pth": ("torch", "weight", lambda path, step: torch.save(tensors(step), path), CHANGED_AND_ADDED),
    "legacy.pt": (
        "torch-legacy",
        "weight",
        lambda path, step: torch.save(tensors(step), path, _use_new_zipfile_serialization=False),
        ADDED,
    ),
    "model.safetensors": ("safetensors", "weight", lambda path, step: safetensors.torch.save_file(tensors(step), path), ADDED),
    "dcp": ("dcp", "weight", lambda path, step: dcp.save(tensors(step), checkpoint_id=path, no_dist=True), ADDED),
    "ocdbt": ("orbax", "bias", lambda path, step: save_orbax(path, step, is_ocdbt=True), ADDED),
    "zarr": ("orbax", "weight", lambda path, step: save_orbax(path, step, is_ocdbt=False), CHANGED_AND_ADDED),
    "model.keras": (
        "keras",
        "model.weights.h5",
        save_keras,
        {
            ("config.json", "changed"),
            ("model.weights.h5", "changed"),
            ("model.weights.h5.layers/dense/vars/0", "changed"),
            ("model.weights.h5.layers/dense/vars/1", "changed"),
        },
    ),
    "array.npy": ("npy", "array", lambda path, step: np.save(path, np.ones((step, 8))), {("array", "changed")}),
    "arrays.npz": ("npz", "weight", lambda path, step: np.savez(path, **arrays(step)), CHANGED_AND_ADDED),
    "state.pkl": ("pickle", "weight", save_pickle, ADDED),
}
"""Format, largest key, a function that saves a step, and what differs between two steps."""


@pytest.mark.parametrize("name", FORMATS)
def test_every_command(run, tmp_path, name):
    """Every command has the outcome of the table, and `diff` finds what a step changed."""
    format, key, save, changed = FORMATS[name]
    old, new = tmp_path / "old" / name, tmp_path / "new" / name
    for step, path in enumerate((old, new), 1):
        path.parent.mkdir()
        save(path, step)
    check_commands(run, Checkpoints(str(old), format, key))
    check_changes(run, old, new, changed)
