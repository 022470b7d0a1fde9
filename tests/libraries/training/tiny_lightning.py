"""A Lightning model of one layer, and a Trainer for it."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class TinyModule(LightningModule):
    def __init__(self, width=4, extra=False, strict=True):
        super().__init__()
        self.width = width
        self.layer = torch.nn.Linear(width, 1)
        self.strict_loading = strict
        if extra:
            self.head = torch.nn.Linear(2, 2)

    def training_step(self, batch, _index):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.layer.parameters())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(8, self.width), batch_size=2)


def create_trainer(directory, steps=2, plugins=None, **arguments):
    """Return a Trainer that saves a checkpoint every two steps and keeps the last one."""
    callback = ModelCheckpoint(dirpath=directory, filename="{step}", every_n_train_steps=2, **arguments)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(max_steps=steps, default_root_dir=directory, accelerator="cpu", plugins=plugins, callbacks=[callback], **quiet)
