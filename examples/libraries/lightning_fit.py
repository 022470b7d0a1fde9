"""Observe a Lightning run that is stopped and continued. Run `python examples/libraries/lightning_fit.py`, then `ckpt-observe traces`."""

import tempfile
from pathlib import Path

import ckpt_observe

watch = ckpt_observe.observe(service="lightning-fit")

import torch  # noqa: E402
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402


class Model(LightningModule):
    """A model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        """Return the loss."""
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def fit(directory: str, steps: int, checkpoint: Path | None = None) -> None:
    """Train, with a checkpoint every five steps."""
    data = torch.utils.data.DataLoader(torch.ones(80, 4), batch_size=2)
    callback = ModelCheckpoint(directory, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = Trainer(max_steps=steps, default_root_dir=directory, accelerator="cpu", logger=False, callbacks=[callback])
    trainer.fit(Model(), data, ckpt_path=checkpoint)


with tempfile.TemporaryDirectory() as directory:
    fit(directory, 10)
    fit(directory, 15, Path(directory) / "step=10.ckpt")
watch.close()
