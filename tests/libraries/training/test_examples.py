"""The examples for training libraries run, and are recorded as they say."""

from __future__ import annotations

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


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


def test_orbax(run_example):
    """Two of ten calls save; the restore links to the last save."""
    operations = run_example("orbax_manager.py")
    assert [(each[names.OPERATION], each[names.STEP]) for each in operations] == [("save", 0), ("save", 5), ("restore", 5)]
    assert operations[2][names.SOURCE_SPAN]
