"""Observe a Keras run that is stopped and continued. Run `python examples/libraries/keras_fit.py`, then `ckpt-observe traces`."""

import os
import tempfile
from pathlib import Path

import ckpt_observe

watch = ckpt_observe.observe(service="keras-fit")
os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # noqa: E402
import numpy as np  # noqa: E402


class Crash(keras.callbacks.Callback):
    """Stops the run after its second epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Raise an exception."""
        if epoch == 1:
            raise KeyboardInterrupt


def fit(directory: Path, *callbacks: keras.callbacks.Callback) -> keras.Model:
    """Train for three epochs, with a backup of each epoch and the best model."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    backup = keras.callbacks.BackupAndRestore(directory / "backup")
    best = keras.callbacks.ModelCheckpoint(directory / "best.keras", monitor="loss", save_best_only=True)
    model.fit(np.ones((20, 4)), np.zeros((20, 1)), batch_size=4, epochs=3, verbose=0, callbacks=[backup, best, *callbacks])
    return model


with tempfile.TemporaryDirectory() as directory:
    try:
        fit(Path(directory), Crash())
    except KeyboardInterrupt:
        fit(Path(directory))
    keras.saving.load_model(Path(directory) / "best.keras")
watch.close()
