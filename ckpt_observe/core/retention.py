"""Retention policies: which checkpoints to keep. They only decide, from headers and the time; they delete nothing.

`KeepLast(10) | KeepEvery(1000)` keeps what either keeps; `KeepLast(10) & KeepWithin(2**30)` what both keep. Whatever the policy says,
the newest checkpoint stays, and so do the bases of every incremental checkpoint that is kept.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError

Reasons = dict[str, str]
"""The reason for keeping each checkpoint, by id."""


class Decision(NamedTuple):
    """Whether one checkpoint is kept, and why."""

    info: CheckpointInfo
    keep: bool
    reason: str


class Retention(ABC):
    """Base class of retention policies. Combine two with | (either keeps) or & (both keep)."""

    @abstractmethod
    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        """Return the ids of the checkpoints to keep, each with the reason. `infos` are ordered newest first."""

    def expired(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Sequence[CheckpointInfo]:
        """Return the checkpoints to remove. Called after each save; override it if that is possible without looking at all `infos`."""
        reasons = self.keep(infos, now)
        return [info for info in infos if info.id not in reasons]

    def reason_to_remove(self) -> str:
        """Return why the policy does not keep a checkpoint, for reports: what the checkpoint is not, such as `not tagged 'best'`."""
        return f"not kept by {self}"

    def __or__(self, other: Retention) -> Retention:
        return Either(self, other) if isinstance(other, Retention) else NotImplemented

    def __and__(self, other: Retention) -> Retention:
        return Both(self, other) if isinstance(other, Retention) else NotImplemented


def _check(value: Any, minimum: int, name: str, *, whole: bool = False) -> None:
    """Raise ConfigError unless the value is a number (`whole`: an integer) of at least `minimum`.

    Called in constructors: used after a save, an invalid value would only be logged, or would keep everything.
    """
    is_number = isinstance(value, Integral if whole else Real)  # includes NumPy's types
    if not (is_number and value >= minimum):
        kind = "an integer" if whole else "a number"
        raise ConfigError(f"{name} must be {kind} of at least {minimum}, not {value!r}")


@dataclass(frozen=True)
class KeepAll(Retention):
    """Keeps everything. The default."""

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return dict.fromkeys([info.id for info in infos], "all are kept")


@dataclass(frozen=True)
class KeepLast(Retention):
    """Keeps the newest `count` checkpoints."""

    count: int

    def __post_init__(self) -> None:
        _check(self.count, 0, "the number of checkpoints to keep", whole=True)

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        reason = "the newest" if self.count == 1 else f"one of the newest {self.count}"
        return dict.fromkeys([info.id for info in infos[: self.count]], reason)

    def reason_to_remove(self) -> str:
        return "not the newest" if self.count == 1 else f"not one of the newest {self.count}"

    def expired(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Sequence[CheckpointInfo]:
        return infos[self.count :]


@dataclass(frozen=True)
class KeepEvery(Retention):
    """Keeps checkpoints whose step is a multiple of `steps`."""

    steps: int

    def __post_init__(self) -> None:
        _check(self.steps, 1, "the interval of steps to keep", whole=True)

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        due = [info for info in infos if info.step is not None and not info.step % self.steps]
        return {info.id: f"step {info.step} is a multiple of {self.steps}" for info in due}

    def reason_to_remove(self) -> str:
        return f"not a step that is a multiple of {self.steps}"


@dataclass(frozen=True)
class KeepFor(Retention):
    """Keeps checkpoints that are not older than `seconds`."""

    seconds: float

    def __post_init__(self) -> None:
        _check(self.seconds, 0, "the age in seconds")

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        recent = [info for info in infos if (now - info.created).total_seconds() <= self.seconds]  # `seconds` may be infinite
        return {info.id: f"younger than {self.seconds:g} s" for info in recent}

    def reason_to_remove(self) -> str:
        return f"older than {self.seconds:g} s"


@dataclass(frozen=True)
class KeepWithin(Retention):
    """Keeps the newest checkpoints that together take at most `size` bytes."""

    size: int

    def __post_init__(self) -> None:
        _check(self.size, 0, "the size in bytes")

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        reasons, total = {}, 0
        for info in infos:
            total += info.stored_size
            if total > self.size:
                break
            reasons[info.id] = f"within {self.size} bytes"
        return reasons

    def reason_to_remove(self) -> str:
        return f"not within {self.size} bytes"


@dataclass(frozen=True)
class KeepTagged(Retention):
    """Keeps checkpoints with this tag."""

    tag: str

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return {info.id: f"tagged {self.tag!r}" for info in infos if self.tag in info.tags}

    def reason_to_remove(self) -> str:
        return f"not tagged {self.tag!r}"


@dataclass(frozen=True, repr=False)
class Either(Retention):
    """Keeps what at least one of two policies keeps."""

    first: Retention
    second: Retention

    def __repr__(self) -> str:
        return f"({self.first} | {self.second})"

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return {**self.second.keep(infos, now), **self.first.keep(infos, now)}

    def reason_to_remove(self) -> str:
        return f"{self.first.reason_to_remove()}, and {self.second.reason_to_remove()}"


@dataclass(frozen=True, repr=False)
class Both(Retention):
    """Keeps what both policies keep."""

    first: Retention
    second: Retention

    def __repr__(self) -> str:
        return f"({self.first} & {self.second})"

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        second = self.second.keep(infos, now)
        return {id: f"{reason}, and {second[id]}" for id, reason in self.first.keep(infos, now).items() if id in second}

    def reason_to_remove(self) -> str:
        return f"{self.first.reason_to_remove()}, or {self.second.reason_to_remove()}"


def plan(policy: Retention, infos: Sequence[CheckpointInfo], now: dt.datetime) -> list[Decision]:
    """Return the decision for each checkpoint, in the order of `infos`, which is newest first. `Checkpointer.prune` carries it out."""
    reasons = _reasons_to_keep(policy, infos, now)
    return [Decision(info, info.id in reasons, reasons.get(info.id) or policy.reason_to_remove()) for info in infos]


def removals(policy: Retention, infos: Sequence[CheckpointInfo], now: dt.datetime) -> list[Decision]:
    """Like `plan`, but return only the decisions to remove. Faster, because it is called after each save."""
    expired = {info.id: info for info in policy.expired(infos, now)}
    if expired:
        expired.pop(infos[0].id, None)
    if expired and any(info.bases for info in infos):
        reasons = _reasons_to_keep(policy, infos, now)
        expired = {id: info for id, info in expired.items() if id not in reasons}
    return [Decision(info, False, policy.reason_to_remove()) for info in expired.values()]


def without_bases(candidates: Sequence[CheckpointInfo], infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return the candidates for removal to which no kept checkpoint refers as its base. `infos`, all of the task, are newest first."""
    ids = {info.id for info in candidates}
    for info in infos:  # a base that stays has bases that stay too; they are older and come later in the list
        if info.id not in ids:
            ids.difference_update(info.bases)
    return [info for info in candidates if info.id in ids]


def _reasons_to_keep(policy: Retention, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
    reasons = policy.keep(infos, now)
    if infos:
        reasons.setdefault(infos[0].id, "the newest")
    for info in infos:
        if info.bases and info.id in reasons:
            for base in info.bases:
                reasons.setdefault(base, f"{info.id} is built on it")
    return reasons
