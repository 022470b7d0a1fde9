"""A Trainer with a model of one layer. Nothing is downloaded."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class TinyConfig(PretrainedConfig):
    model_type = "tiny"
    width = 4


class TinyModel(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config, *extra):
        super().__init__(config)
        self.layer = torch.nn.Linear(config.width, 4)
        for name in extra:
            self.add_module(name, torch.nn.Linear(2, 2))
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x, labels):
        output = self.layer(x)
        return {"loss": (output - labels).pow(2).mean(), "logits": output}


def create_trainer(directory, steps=2, trainer=Trainer, extra=(), width=4, **arguments):
    """Return a Trainer that saves a checkpoint every two steps."""
    settings = {"save_steps": 2, "per_device_train_batch_size": 2, "report_to": [], "disable_tqdm": True, "use_cpu": True} | arguments
    config = TinyConfig()
    config.width = width
    data = [{"x": torch.ones(width), "labels": torch.zeros(4)} for _ in range(16)]
    settings = TrainingArguments(str(directory), max_steps=steps, **settings)
    return trainer(TinyModel(config, *extra), settings, train_dataset=data, eval_dataset=data)
