"""Observe joblib, which a program asks for. Run `python examples/libraries/joblib_model.py`, then `ckpt-observe traces`."""

import tempfile
from pathlib import Path

import ckpt_observe

watch = ckpt_observe.observe(service="joblib-model", libraries="default,+joblib")

import joblib  # noqa: E402

with tempfile.TemporaryDirectory() as directory, ckpt_observe.task("train", id="run-42"):
    path = Path(directory) / "model.joblib"
    joblib.dump({"weights": [0.5, 0.25], "epoch": 3}, path, compress=3)
    assert joblib.load(path)["epoch"] == 3
watch.close()
