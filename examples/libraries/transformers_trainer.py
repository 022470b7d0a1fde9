"""Observe a Trainer that is stopped and continued. Run `python examples/libraries/transformers_trainer.py`, then `ckpt-observe traces`."""

import tempfile

import ckpt_observe

watch = ckpt_observe.observe(service="transformers-trainer")

import torch  # noqa: E402
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments  # noqa: E402


class Model(PreTrainedModel):
    """A model of one layer."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        return {"loss": (self.layer(x) - labels).pow(2).mean()}


def train(directory: str, steps: int, *, resume: bool) -> None:
    """Train, with a checkpoint every five steps."""
    data = [{"x": torch.ones(4), "labels": torch.zeros(1)}] * 40
    arguments = TrainingArguments(directory, max_steps=steps, save_steps=5, save_total_limit=2, report_to=[], use_cpu=True)
    Trainer(Model(PretrainedConfig()), arguments, train_dataset=data).train(resume_from_checkpoint=resume)


with tempfile.TemporaryDirectory() as directory:
    train(directory, 10, resume=False)
    train(directory, 15, resume=True)
watch.close()
