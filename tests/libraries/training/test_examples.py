"""The examples for training libraries run, and are recorded as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
EXAMPLES = Path(__file__).parents[3] / "examples" / "libraries"


@pytest.fixture
def run_with_torchrun(tmp_path):
    """A function that runs an example as the tutorial says, and returns its traces as text, the newest first."""

    def run(name, **settings):
        environment = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages")}
        command = [sys.executable, "-m", "ckpt_observe"]
        program = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            str(EXAMPLES / name),
            str(tmp_path / "checkpoints"),
        ]
        process = subprocess.run(
            [*command, "run", "--", *program], env={**environment, **settings}, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        lines = subprocess.run([*command, "traces", "--tsv"], env=environment, capture_output=True, text=True, check=True).stdout
        return [
            subprocess.run([*command, "traces", line.split("\t")[0]], env=environment, capture_output=True, text=True, check=True).stdout
            for line in lines.splitlines()
        ]

    return run


def test_torch_training(run_example):
    """Two saves and a load of torch, a save and a load of safetensors, and an array, all in one task. The load links to the second save."""
    operations = run_example("torch_training.py")
    assert [(each[names.SYSTEM], each[names.OPERATION]) for each in operations] == [
        ("torch", "save"),
        ("torch", "save"),
        ("torch", "load"),
        ("safetensors", "save"),
        ("safetensors", "load"),
        ("numpy", "save"),
    ]
    assert {each[names.TASK_ID] for each in operations} == {"run-42"}
    first, second, load, *_ = operations
    assert (first[names.STEP], second[names.STEP], load[names.STEP]) == (1, 2, 2)
    assert load[names.SOURCE_SPAN]


def test_transformers(run_example):
    """The continued run restores the last checkpoint of the first one."""
    operations = run_example("transformers_trainer.py")
    steps = [(each[names.OPERATION], each.get(names.STEP)) for each in operations]
    assert steps == [("save", 5), ("save", 10), ("restore", 10), ("save", 15), ("prune", None)]
    assert operations[2][names.SOURCE_SPAN]


def test_accelerate(run_example):
    """The restore links to the first of the two saves."""
    operations = run_example("accelerate_loop.py")
    assert [each[names.OPERATION] for each in operations] == ["save", "save", "restore"]
    assert operations[2][names.ID] == operations[0][names.ID]
    assert operations[2][names.SOURCE_SPAN]


def test_lightning(run_example):
    """The continued run restores the last checkpoint of the first one."""
    operations = run_example("lightning_fit.py")
    assert [(each[names.OPERATION], each[names.STEP]) for each in operations] == [("save", 5), ("save", 10), ("restore", 10), ("save", 15)]
    assert operations[2][names.SOURCE_SPAN]


def test_keras(run_example):
    """The continued run restores the backup of the second epoch, and removes it at its end."""
    operations = run_example("keras_fit.py", KERAS_BACKEND="torch")
    steps = [(each[names.OPERATION], each.get(names.STEP)) for each in operations]
    saves = [("save", 5), ("save", 5), ("save", 10), ("save", 10)]
    assert steps == [*saves, ("restore", 10), ("save", 15), ("save", 15), ("delete", None), ("load", 15)]
    assert operations[4][names.SOURCE_SPAN]
    assert operations[4][names.STEPS_SINCE] == 0


def test_torch_dcp(run_example):
    """Two ranks save in the background and load: one save and one load each, which links to its save."""
    operations = run_example("torch_dcp.py")
    assert sorted((each[names.OPERATION], each[names.RANK]) for each in operations) == [("load", 0), ("load", 1), ("save", 0), ("save", 1)]
    for each in operations:
        assert (each[names.SYSTEM], each[names.OUTCOME], each[names.STEP]) == ("torch.dcp", "ok", 100)
        assert (names.ASYNC_DURABLE if each[names.OPERATION] == "save" else names.SOURCE_SPAN) in each


def test_torchrun(run_with_torchrun):
    """The tutorial: under torchrun, every checkpoint of both ranks is one trace, with the times of the async save.

    That the slow rank is named is tested in `test_ranks`, with a delay that no load of the machine can hide.
    """
    traces = run_with_torchrun("torchrun_training.py", SLOW_RANK="1")
    assert [(trace.count("rank 0 of 2"), trace.count("rank 1 of 2")) for trace in traces] == [(1, 1)] * 4
    assert [len(re.findall(r"blocked \S+ \w+, durable after", trace)) for trace in traces] == [0, 2, 0, 0]


def test_orbax(run_example):
    """Two of ten calls save; the restore links to the last save."""
    operations = run_example("orbax_manager.py")
    assert [(each[names.OPERATION], each[names.STEP]) for each in operations] == [("save", 0), ("save", 5), ("restore", 5)]
    assert operations[2][names.SOURCE_SPAN]
