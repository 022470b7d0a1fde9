"""Instrumentors of several libraries as one: their imports take seconds, and the contract needs one per test."""

from ckpt_observe.instrument.accelerate import AccelerateInstrumentor
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.keras import KerasInstrumentor
from ckpt_observe.instrument.lightning import LightningInstrumentor, PyTorchLightningInstrumentor
from ckpt_observe.instrument.orbax import OrbaxInstrumentor
from ckpt_observe.instrument.torch_distributed import TorchDistributedInstrumentor
from ckpt_observe.instrument.torch_files import TorchInstrumentor
from ckpt_observe.instrument.transformers import TransformersInstrumentor


def combine(library, *instrumentors):
    """Return a class with the tables of several instrumentors. A row that several of them have counts once."""
    parts = [instrumentor() for instrumentor in instrumentors]
    targets = {row.name: row for part in parts for row in part.targets()}
    families = [row for part in parts for row in part.families()]

    class Combined(Instrumentor):
        name = "combined"

        def targets(self):
            return [*targets.values()]

        def families(self):
            return families

    Combined.library = library
    return Combined


AllOfTorch = combine("torch", TorchInstrumentor, TorchDistributedInstrumentor)
Trainers = combine("torch", TransformersInstrumentor, AccelerateInstrumentor, LightningInstrumentor, PyTorchLightningInstrumentor)
AllOfJax = combine("jax", OrbaxInstrumentor, KerasInstrumentor)
