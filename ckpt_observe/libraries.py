"""The checkpoint libraries that are observed, and how a program selects them. The table in the README is generated from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ckpt_observe import environment
from ckpt_observe.support import entry_points
from ckpt_observe.support.parsing import parse_selection

ENTRY_POINT_GROUP: Final = "ckpt_observe.instrumentors"
"""Other packages announce their instrumentors in this group of entry points."""


class Library(NamedTuple):
    """A library with a bundled instrumentor."""

    title: str
    instrumentor: str
    """`module:class`, imported when the library is."""
    module: str
    """The module of the library whose import loads the instrumentor. Not a namespace package, which is never executed."""
    default: bool = True
    """False for libraries that also write other things than checkpoints: they are observed if the program asks for it."""
    is_ubiquitous: bool = False
    """Whether so many programs import it that an import does not suggest checkpoints."""


_LIGHTNING: Final = "ckpt_observe.instrument.lightning"
_SESSIONS: Final = "ckpt_observe.instrument.agent_sessions"
_DCP: Final = "ckpt_observe.instrument.torch_distributed"

# fmt: off
LIBRARIES: Final[dict[str, Library]] = {
    "reference": Library("ckpt_observe.core", "ckpt_observe.instrument.reference:ReferenceInstrumentor", "ckpt_observe.core"),
    "langgraph": Library("LangGraph", "ckpt_observe.instrument.langgraph:LangGraphInstrumentor", "langgraph.checkpoint.base"),
    "openai-agents": Library("OpenAI Agents SDK", f"{_SESSIONS}:OpenAIAgentsInstrumentor", "agents.memory.session"),
    "google-adk": Library("Google ADK", f"{_SESSIONS}:GoogleADKInstrumentor", "google.adk.sessions.base_session_service"),
    "agent-framework": Library("Agent Framework", f"{_SESSIONS}:AgentFrameworkInstrumentor", "agent_framework._workflows._checkpoint"),
    "crewai": Library("CrewAI", "ckpt_observe.instrument.crewai:CrewAIInstrumentor", "crewai"),
    "dbos": Library("DBOS", "ckpt_observe.instrument.dbos:DBOSInstrumentor", "dbos"),
    "torch": Library("torch.save", "ckpt_observe.instrument.torch_files:TorchInstrumentor", "torch"),
    "torch-dcp": Library("torch.distributed.checkpoint", f"{_DCP}:TorchDistributedInstrumentor", "torch.distributed.checkpoint"),
    "safetensors": Library("safetensors", "ckpt_observe.instrument.safetensors_files:SafetensorsInstrumentor", "safetensors"),
    "transformers": Library("Transformers", "ckpt_observe.instrument.transformers:TransformersInstrumentor", "transformers.trainer"),
    "accelerate": Library("Accelerate", "ckpt_observe.instrument.accelerate:AccelerateInstrumentor", "accelerate.accelerator"),
    "lightning": Library("Lightning", f"{_LIGHTNING}:LightningInstrumentor", "lightning.fabric"),
    "pytorch-lightning": Library("PyTorch Lightning", f"{_LIGHTNING}:PyTorchLightningInstrumentor", "lightning_fabric"),
    "orbax": Library("Orbax", "ckpt_observe.instrument.orbax:OrbaxInstrumentor", "orbax.checkpoint"),
    "keras": Library("Keras", "ckpt_observe.instrument.keras:KerasInstrumentor", "keras"),
    "joblib": Library("joblib", "ckpt_observe.instrument.object_files:JoblibInstrumentor", "joblib", default=False),
    "numpy": Library("NumPy", "ckpt_observe.instrument.object_files:NumPyInstrumentor", "numpy", default=False, is_ubiquitous=True),
}
# fmt: on


def names() -> list[str]:
    """Return the names of all instrumentors. A bundled one takes precedence over an entry point of the same name."""
    return list(dict.fromkeys((*LIBRARIES, *entry_points.names(ENTRY_POINT_GROUP))))


CUSTOM: Final = "custom"
"""Value of `checkpoint.system` for operations that a program records itself."""
_SYSTEMS: Final = {"torch-dcp": "torch.dcp", "pytorch-lightning": "lightning"}


def system_of(name: str) -> str:
    """Return the value of `checkpoint.system` on the spans of a bundled library."""
    return _SYSTEMS.get(name, name.replace("-", "_"))


def select(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the instrumentors that a setting such as `default,+joblib,-langgraph` selects: see `parse_selection`."""
    available = names()
    default = [name for name in available if name not in LIBRARIES or LIBRARIES[name].default]
    return parse_selection(environment.LIBRARIES, value, available, default)


class OtherLibrary(NamedTuple):
    """A library that writes checkpoints and may have no instrumentor."""

    title: str
    modules: tuple[str, ...]
    """A program that has imported one of them uses the library."""


# fmt: off
OTHER_LIBRARIES: Final[dict[str, OtherLibrary]] = {
    "torch": OtherLibrary("PyTorch", ("torch",)),
    "safetensors": OtherLibrary("safetensors", ("safetensors",)),
    "transformers": OtherLibrary("Transformers", ("transformers",)),
    "accelerate": OtherLibrary("Accelerate", ("accelerate",)),
    "lightning": OtherLibrary("Lightning", ("lightning", "pytorch_lightning")),
    "deepspeed": OtherLibrary("DeepSpeed", ("deepspeed",)),
    "orbax": OtherLibrary("Orbax", ("orbax.checkpoint",)),
    "flax": OtherLibrary("Flax", ("flax",)),
    "tensorflow": OtherLibrary("TensorFlow", ("tensorflow",)),
    "ray-train": OtherLibrary("Ray Train", ("ray.train",)),
    "xgboost": OtherLibrary("XGBoost", ("xgboost",)),
    "lightgbm": OtherLibrary("LightGBM", ("lightgbm",)),
    "stable-baselines3": OtherLibrary("Stable-Baselines3", ("stable_baselines3",)),
    "temporal": OtherLibrary("Temporal", ("temporalio",)),
    "prefect": OtherLibrary("Prefect", ("prefect",)),
    "pydantic-ai": OtherLibrary("Pydantic AI", ("pydantic_ai",)),
    "llama-index": OtherLibrary("LlamaIndex", ("llama_index.core",)),
    "autogen": OtherLibrary("AutoGen", ("autogen_agentchat",)),
    "haystack": OtherLibrary("Haystack", ("haystack",)),
}
# fmt: on
"""Well-known libraries, so that a program whose checkpoints are not observed learns why. Those that are in LIBRARIES, too, are observed."""


def uninstrumented_libraries() -> dict[str, OtherLibrary]:
    """Return the well-known libraries that neither a bundled instrumentor nor an entry point observes."""
    instrumented = [library.module for library in LIBRARIES.values()]
    return {
        name: library
        for name, library in OTHER_LIBRARIES.items()
        if name not in names() and not any(f"{module}.".startswith(f"{package}.") for module in instrumented for package in library.modules)
    }
