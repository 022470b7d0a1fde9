"""Decides which traces are sampled, from `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`, exactly as OpenTelemetry's SDK does.

The decision for a new trace is made once, at its root. A trace that started elsewhere keeps its decision, unless the sampler lacks the
prefix `parentbased_`. A ratio is applied to the trace id alone, so that all processes with the same ratio decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from ckpt_observe import environment
from ckpt_observe.errors import ConfigError
from ckpt_observe.support.parsing import quote

DEFAULT: Final = "parentbased_always_on"
NEVER: Final = "always_off"
Rule: TypeAlias = Callable[[str, bool | None], bool]
"""Returns whether a trace is sampled, from its id and whether its parent is sampled (None: it has no parent)."""
_ABOVE_ALL_IDS: Final = "g"
"""Greater than any string of hex digits."""


class Sampler(NamedTuple):
    """A sampler. `ratio` is the share of traces to sample; with `parentbased_`, only of traces without a parent."""

    name: str = DEFAULT
    ratio: float = 1.0

    def note(self, *, is_counted: bool, exports_failures: bool) -> str:
        """Return what the sampler leaves out, for a message; empty if nothing.

        `is_counted`: metrics count what is not sampled. `exports_failures`: what fails is exported even if it is not sampled.
        """
        if self.ratio >= 1.0:
            return ""
        omission = "operations of unsampled traces are not recorded"
        if exports_failures:
            omission = "of the operations of unsampled traces, only those that fail are exported"
        effect = "metrics count every operation" if is_counted else f"{omission}; to count them, add the exporter prometheus"
        return f"{self._share()}; {effect}"

    def omission(self, *, exports_failures: bool) -> str:
        """Return what recorded traces lack because of the sampler, for a message; empty if nothing."""
        if self.ratio >= 1.0:
            return ""
        exception = ", except failures" if exports_failures else ""
        return f"{self._share()}; operations of unsampled traces are not included{exception}"

    def _share(self) -> str:
        share = f"{self.ratio:.3g} of the new traces are" if self.ratio else "no new trace is"
        return f"{share} sampled ({environment.TRACES_SAMPLER}={self.name})"

    def rule(self) -> Rule | None:
        """Return the decision as a function, or None for the default: sample every new trace, and keep the parent's decision."""
        parent_based = self.name.startswith(_PARENT_BASED)
        if parent_based and self.ratio >= 1.0:
            return None
        bound = f"{round(self.ratio * (1 << 64)):016x}" if self.ratio < 1.0 else _ABOVE_ALL_IDS

        def samples(trace_id: str, parent_sampled: bool | None) -> bool:
            if parent_based and parent_sampled is not None:
                return parent_sampled
            return trace_id[16:] < bound  # the last 64 bits, as in OpenTelemetry's SDKs; hex strings of equal length compare like numbers

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
"""Ratio of each sampler. None: OTEL_TRACES_SAMPLER_ARG."""
_REMOTE_SAMPLERS: Final = ("jaeger_remote", "parentbased_jaeger_remote", "xray")
"""Samplers of OpenTelemetry that ask a server. They are treated like the default."""


def read(environ: Mapping[str, str]) -> Sampler:
    """Return the sampler that the environment sets. Raise ConfigError if its name or ratio is invalid."""
    name = environ.get(environment.TRACES_SAMPLER, "").strip().lower() or DEFAULT
    if name in _REMOTE_SAMPLERS:
        return Sampler()
    if name not in _RATIOS:
        raise ConfigError(f"{environment.TRACES_SAMPLER}: {quote(name)} is not a sampler; use one of: {', '.join(_RATIOS)}")
    fixed = _RATIOS[name]
    return Sampler(name, _ratio(environ.get(environment.TRACES_SAMPLER_ARG, "")) if fixed is None else fixed)


def _ratio(text: str) -> float:
    try:
        ratio = float(text or "1")
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(f"{environment.TRACES_SAMPLER_ARG}: {quote(text)} is not a ratio; use a number from 0 to 1")
    return ratio
