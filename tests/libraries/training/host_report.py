"""Describes what a training program can notice of being observed: `host_report.py [damaged]` prints a report by subject.

`damaged` is the control: before each subject, the program does to itself what a careless instrumentor would do.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import pickle
import random
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import keras
import numpy as np
import orbax.checkpoint as ocp
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from lightning.pytorch import Trainer as LightningTrainer
from transformers import Trainer

warnings.simplefilter("ignore")
FUNCTIONS = [
    *(torch.save, torch.load, dcp.save, dcp.load, dcp.async_save, safetensors.torch.save_file, safetensors.torch.load_file),
    *(keras.saving.save_model, keras.saving.load_model, keras.Model.fit, Trainer.train, Trainer._save_checkpoint),
    *(Accelerator.save_state, LightningTrainer.save_checkpoint, ocp.CheckpointManager.save, ocp.CheckpointManager.restore),
]


def create_model():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def results(directory):
    """What the functions return, the bytes of the files of torch and safetensors, and the weights that come back."""
    state, model = {"w": torch.arange(9.0), "step": 3}, create_model()
    returned = [
        torch.save(state, directory / "a.pt"),
        safetensors.torch.save_file({"w": state["w"]}, directory / "a.safetensors"),
        model.save(directory / "a.keras"),
        dcp.load(state, checkpoint_id=directory / "dcp") if dcp.save(state, checkpoint_id=directory / "dcp") is None else "",
        model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0, callbacks=[keras.callbacks.BackupAndRestore(directory / "b")]).history,
    ]
    with ocp.CheckpointManager(directory / "orbax") as manager:
        returned.append(manager.save(0, args=ocp.args.StandardSave({"w": np.ones(3)})))
        manager.wait_until_finished()
        returned.append(manager.restore(0, args=ocp.args.StandardRestore())["w"].tolist())
    digests = [hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in ("a.pt", "a.safetensors")]
    loaded = torch.load(directory / "a.pt"), keras.saving.load_model(directory / "a.keras")
    return [str(returned), digests, type(loaded[0]).__name__, loaded[0]["w"].tolist(), loaded[1].get_weights()[0].tolist()]


def exceptions(directory):
    """Type and message of what the program catches, and the types of its causes."""

    def call(function):
        try:
            function()
        except Exception as error:
            causes = [type(cause).__name__ for cause in (error.__cause__, error.__context__)]
            return type(error).__name__, str(error).replace(str(directory), "").partition("Traceback")[0], causes
        return None

    return [
        call(lambda: torch.save(threading.Lock(), directory / "b.pt")),
        call(torch.save),
        call(lambda: torch.load(directory / "missing.pt")),
        call(lambda: safetensors.torch.save_file({"w": 1}, directory / "b")),
        call(lambda: keras.saving.load_model(directory / "missing.keras")),
        call(lambda: create_model().save(directory / "model.txt")),
        call(lambda: ocp.CheckpointManager(directory / "empty").restore(7)),
    ]


def signatures(_directory):
    return [(each.__qualname__, each.__module__, str(inspect.signature(each)), inspect.isroutine(each)) for each in FUNCTIONS]


def pickling(_directory):
    """What can be pickled, and comes back as the same function, perhaps by its other name."""

    def same(value):
        try:
            return pickle.loads(pickle.dumps(value)) == value
        except Exception as error:
            return type(error).__name__

    return [(each.__qualname__, same(each)) for each in FUNCTIONS]


def environment(_directory):
    """Without our settings, and without the variable in which pytest names the test that runs."""
    return sorted((name, value) for name, value in os.environ.items() if not name.startswith(("CKPT_OBSERVE", "PYTEST_")))


def random_states(directory):
    """The states of all generators after seeded work: libraries draw from them, too, always as often."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    results(directory)
    return [
        hashlib.sha256(str(state).encode()).hexdigest()
        for state in (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist())  # noqa: NPY002 - libraries use it
    ]


def damage(subject):
    """Do what a careless instrumentor would do."""
    original = FUNCTIONS[0]

    def careless(*args, **kwargs):
        random.random()  # an id
        kwargs.pop("map_location", None)
        try:
            original(*args, **kwargs)
        except Exception as error:
            raise RuntimeError("cannot save") from error
        return "saved"

    if subject in ("signatures", "pickling"):
        FUNCTIONS[0] = functools.wraps(original)(careless) if subject == "pickling" else careless
    elif subject == "environment":
        os.environ["TRACEPARENT"] = "00-1-1-01"
    else:
        torch.save = careless


report = {}
for subject in (results, exceptions, signatures, pickling, environment, random_states):
    if sys.argv[1:] == ["damaged"]:
        damage(subject.__name__)
    with tempfile.TemporaryDirectory() as place:
        report[subject.__name__] = subject(Path(place))
print(json.dumps(report))
