"""The instrumentors of torch as one: an import of torch takes seconds, and the contract needs one per test."""

from ckpt_observe.instrument.torch_distributed import TorchDistributedInstrumentor
from ckpt_observe.instrument.torch_files import TorchInstrumentor


class AllOfTorch(TorchInstrumentor):
    """Observes files and distributed checkpoints of torch."""

    def targets(self):
        return (*super().targets(), *TorchDistributedInstrumentor().targets())
