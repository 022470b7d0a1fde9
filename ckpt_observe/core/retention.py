"""What to keep: small pure policies over what is known about checkpoints. They delete nothing and need no disk.

`KeepLast(10) | KeepEvery(1000)` keeps what either keeps; `KeepLast(10) & KeepWithin(2**30)` what both keep. Whatever the
policy says, the newest checkpoint stays, and so does every one that a kept incremental checkpoint is built on.
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
"""Why each kept checkpoint is kept, by id."""


class Decision(NamedTuple):
    """What becomes of one checkpoint, and why."""

    info: CheckpointInfo
    keep: bool
    reason: str


class Retention(ABC):
    """A policy."""

    @abstractmethod
    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        """Those to keep of these, which are given newest first."""

    def leave(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Sequence[CheckpointInfo]:
        """Those not to keep: asked after each save, so a policy that need not look at all of them says it without."""
        kept = self.keep(infos, now)
        return [info for info in infos if info.id not in kept]

    def __or__(self, other: Retention) -> Retention:
        return Either(self, other) if isinstance(other, Retention) else NotImplemented

    def __and__(self, other: Retention) -> Retention:
        return Both(self, other) if isinstance(other, Retention) else NotImplemented


def _check(value: Any, least: int, what: str, *, whole: bool = False) -> None:
    """Refuse what cannot be when the policy is made: after a save it would fail, or keep everything, in silence."""
    is_number = isinstance(value, Integral if whole else Real)  # numpy's too
    if not (is_number and value >= least):
        raise ConfigError(f"{what} {least} or more, not {value!r}")


@dataclass(frozen=True)
class KeepAll(Retention):
    """Everything: where nothing else is said."""

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return dict.fromkeys([info.id for info in infos], "all are kept")


@dataclass(frozen=True)
class KeepLast(Retention):
    """The newest `count`."""

    count: int

    def __post_init__(self) -> None:
        _check(self.count, 0, "the number of checkpoints to keep is a whole one,", whole=True)

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return dict.fromkeys([info.id for info in infos[: self.count]], f"one of the newest {self.count}")

    def leave(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Sequence[CheckpointInfo]:
        return infos[self.count :]


@dataclass(frozen=True)
class KeepEvery(Retention):
    """Those whose step is a multiple of `steps`."""

    steps: int

    def __post_init__(self) -> None:
        _check(self.steps, 1, "steps to keep are multiples of a whole number,", whole=True)

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        due = [info for info in infos if info.step is not None and not info.step % self.steps]
        return {info.id: f"step {info.step} is a multiple of {self.steps}" for info in due}


@dataclass(frozen=True)
class KeepFor(Retention):
    """Those no older than `seconds`."""

    seconds: float

    def __post_init__(self) -> None:
        _check(self.seconds, 0, "an age is a number of seconds,")

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        young = [info for info in infos if (now - info.created).total_seconds() <= self.seconds]  # which may be infinity
        return {info.id: f"younger than {self.seconds:g} s" for info in young}


@dataclass(frozen=True)
class KeepWithin(Retention):
    """The newest that together take no more than `size` bytes."""

    size: int

    def __post_init__(self) -> None:
        _check(self.size, 0, "a size is a number of bytes,")

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        kept, total = {}, 0
        for info in infos:
            total += info.stored_size
            if total > self.size:
                break
            kept[info.id] = f"within {self.size} bytes"
        return kept


@dataclass(frozen=True)
class KeepTagged(Retention):
    """Those that carry a tag."""

    tag: str

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return {info.id: f"tagged {self.tag!r}" for info in infos if self.tag in info.tags}


@dataclass(frozen=True, repr=False)
class Either(Retention):
    """What one of the two keeps."""

    left: Retention
    right: Retention

    def __repr__(self) -> str:
        return f"({self.left} | {self.right})"

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        return {**self.right.keep(infos, now), **self.left.keep(infos, now)}


@dataclass(frozen=True, repr=False)
class Both(Retention):
    """What both of the two keep."""

    left: Retention
    right: Retention

    def __repr__(self) -> str:
        return f"({self.left} & {self.right})"

    def keep(self, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
        right = self.right.keep(infos, now)
        return {id: f"{reason}, and {right[id]}" for id, reason in self.left.keep(infos, now).items() if id in right}


def plan(policy: Retention, infos: Sequence[CheckpointInfo], now: dt.datetime) -> list[Decision]:
    """What would become of each checkpoint, newest first: the dry run, and what a real one does."""
    kept = _kept(policy, infos, now)
    return [Decision(info, info.id in kept, kept.get(info.id) or _not_kept(policy)) for info in infos]


def removals(policy: Retention, infos: Sequence[CheckpointInfo], now: dt.datetime) -> list[Decision]:
    """Of a plan, only what goes: after each save there is no need for a word about the thousand that stay."""
    going = {info.id: info for info in policy.leave(infos, now)}
    if going:
        going.pop(infos[0].id, None)
    if going and any(info.bases for info in infos):
        kept = _kept(policy, infos, now)
        going = {id: info for id, info in going.items() if id not in kept}
    return [Decision(info, False, _not_kept(policy)) for info in going.values()]


def unused(going: Sequence[CheckpointInfo], infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """Of what is to go, what none that stays of these, newest first, is built on."""
    ids = {info.id for info in going}
    for info in infos:  # what stays for another has bases that stay too: they are older, and come later
        if info.id not in ids:
            ids.difference_update(info.bases)
    return [info for info in going if info.id in ids]


def _not_kept(policy: Retention) -> str:
    return f"not kept by {policy}"


def _kept(policy: Retention, infos: Sequence[CheckpointInfo], now: dt.datetime) -> Reasons:
    kept = policy.keep(infos, now)
    if infos:
        kept.setdefault(infos[0].id, "the newest")
    for info in infos:
        if info.bases and info.id in kept:
            for base in info.bases:
                kept.setdefault(base, f"{info.id} is built on it")
    return kept
