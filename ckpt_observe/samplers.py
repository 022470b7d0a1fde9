"""Which traces are recorded: OpenTelemetry's `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`, decided as its SDK decides.

A trace that begins with us is decided once, at its root. A trace that began elsewhere keeps its decision, unless the sampler is one
without `parentbased_`, which decides by itself; by the trace's id, so everybody with the same ratio decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from ckpt_observe import environment
from ckpt_observe.errors import ConfigError

DEFAULT: Final = "parentbased_always_on"
NEVER: Final = "always_off"
Rule: TypeAlias = Callable[[str, bool | None], bool]
"""From a trace's id, and whether its parent is sampled (None: it begins here), to whether it is recorded."""
_BEYOND_ALL: Final = "g"
"""No hex digits are greater."""


class Sampler(NamedTuple):
    """A sampler by its name; `ratio` is that of traces without a parent."""

    name: str = DEFAULT
    ratio: float = 1.0

    def rule(self) -> Rule | None:
        """The decision as a function; None where there is nothing to decide: all begin recorded, and the parent's decision is kept."""
        parent_based = self.name.startswith(_PARENT_BASED)
        if parent_based and self.ratio >= 1.0:
            return None
        bound = f"{round(self.ratio * (1 << 64)):016x}" if self.ratio < 1.0 else _BEYOND_ALL

        def samples(trace_id: str, parent_sampled: bool | None) -> bool:
            if parent_based and parent_sampled is not None:
                return parent_sampled
            return trace_id[16:] < bound  # as OpenTelemetry's SDKs: the last 64 bits; hex digits of equal number compare as numbers do

        return samples


_PARENT_BASED: Final = "parentbased_"
_RATIOS: Final[Mapping[str, float | None]] = {
    "always_on": 1.0,
    NEVER: 0.0,
    "traceidratio": None,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
    "parentbased_traceidratio": None,
}
"""The ratio of each; None: that of the argument."""
_ASK_A_SERVER: Final = ("jaeger_remote", "parentbased_jaeger_remote", "xray")
"""Names that OpenTelemetry knows, for SDKs that have them. Here all is recorded, and the parent's decision kept."""


def read(environ: Mapping[str, str]) -> Sampler:
    """The sampler that the environment names. A name or ratio that cannot be is a ConfigError."""
    name = environ.get(environment.TRACES_SAMPLER, "").strip().lower() or DEFAULT
    if name in _ASK_A_SERVER:
        return Sampler()
    if name not in _RATIOS:
        raise ConfigError(f"{environment.TRACES_SAMPLER}: '{name}' is not known; use one of: {', '.join(_RATIOS)}")
    fixed = _RATIOS[name]
    return Sampler(name, _ratio(environ.get(environment.TRACES_SAMPLER_ARG, "")) if fixed is None else fixed)


def _ratio(text: str) -> float:
    try:
        ratio = float(text or "1")
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(f"{environment.TRACES_SAMPLER_ARG}: '{text}' is not a ratio from 0 to 1")
    return ratio
