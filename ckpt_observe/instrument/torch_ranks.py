"""The ranks of a distributed checkpoint of torch: one trace for all of them, and which of them is slow.

Nothing is sent that torch does not send anyway, because a rank that is not observed would wait for it forever. The trace id follows from a
random number that the ranks agree on once, in the store of their process group, which takes no other rank's help. The times of a rank
travel to the coordinator as an additional attribute of its first write result.
"""

from __future__ import annotations

import hashlib
import secrets
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.context import Context, get_current

from ckpt_observe.instrument.library_call import LibraryOperation
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import SPAN_KEY, CarriedSpan, Parent
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import raise_host_exception

_TIMES: Final = "_ckpt_observe_times"
"""The additional attribute of a write result. It is a plain dict, so a coordinator without this package can read the result."""
_KEY: Final = "ckpt_observe.run"
_LEAST_DELAY: Final = 1.0
_LEAST_RATIO: Final = 1.2
"""A rank is a straggler if it takes this many seconds and times longer than the median of the others."""
_MAX_SIZES: Final = 128
"""Ranks whose sizes the coordinator reports."""

_run_ids: dict[int, str] = {}
"""By the id of a store: what the ranks agreed on."""
_saves: Counter[tuple[str, str]] = Counter()
"""Operations so far, by name and checkpoint id: a program may save to one path again and again."""


class RankTimes:
    """What is known about a save or load of this rank."""

    __slots__ = ("span_id", "trace_id")

    def __init__(self) -> None:
        self.trace_id = self.span_id = ""
        """Ids of the coordinator's operation."""


def describe_rank(group: Any, *, no_dist: bool) -> dict[str, Any]:
    """Return rank and number of ranks; nothing without a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if no_dist or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    return {names.RANK: distributed.get_rank(group), names.WORLD_SIZE: distributed.get_world_size(group)}


def choose_ids(operation: LibraryOperation) -> None:
    """Derive the ids of the coordinator's operation. It gets them; the other ranks are below it."""
    world_size, id = operation.attribute(names.WORLD_SIZE), operation.attribute(names.ID)
    run_id = _agree_on_run() if world_size is not None and world_size > 1 and id else None
    if run_id is None:
        return
    _saves[operation.name, id] += 1
    text = f"{run_id} {operation.name} {id} {_saves[operation.name, id]}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    operation.details.trace_id, operation.details.span_id = digest[:32], digest[32:48]
    operation.trace_id = digest[:32]
    if operation.attribute(names.RANK) == 0:
        operation.span_id = digest[32:48]


def find_coordinator(operation: LibraryOperation) -> Context | None:
    """Return the context of the coordinator's operation, for another rank that has no task and no parent."""
    details = operation.details
    if not details.trace_id or not operation.attribute(names.RANK) or recorder.process_parent is not None:
        return None
    sampled = recorder.samples is None or recorder.samples(details.trace_id, None)
    operation.trace_id = ""  # it is not the root
    return Context({**get_current(), SPAN_KEY: CarriedSpan(Parent(details.trace_id, details.span_id, sampled))})


def _agree_on_run() -> str | None:
    """Return a random text that all ranks of the process group have, or None. The first rank that asks chooses it."""
    try:
        store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        run_id = _run_ids.get(id(store))
        if run_id is None:
            _run_ids.clear()
            run_id = _run_ids[id(store)] = store.compare_set(_KEY, "", secrets.token_hex(16)).decode()
        return run_id
    except Exception as error:  # an old or foreign store, or a server that is gone
        raise_host_exception(error)
        return None


def add_times(results: Any, seconds: Mapping[str, float]) -> None:
    """Attach the times of this rank to its results."""
    if isinstance(results, list) and results and hasattr(results[0], "__dict__"):
        object.__setattr__(results[0], _TIMES, dict(seconds))  # the class is a frozen dataclass


def compare_ranks(results: Sequence[Any]) -> dict[str, Any]:
    """Return the attributes about all ranks: the bytes of each, and the rank that took longer than the others, if there is one."""
    sizes = [sum(getattr(each, "size_in_bytes", 0) for each in rank) if isinstance(rank, list) else 0 for rank in results]
    attributes: dict[str, Any] = {names.RANK_SIZES: sizes} if 1 < len(sizes) <= _MAX_SIZES else {}
    times = {number: _times_of(rank) for number, rank in enumerate(results)}
    delays = [
        (delay, number, phase)
        for number, phases in times.items()
        for phase, seconds in phases.items()
        if (delay := _delay(seconds, [other[phase] for each, other in times.items() if each != number and phase in other]))
    ]
    if delays:
        delay, number, phase = max(delays)
        attributes |= {names.STRAGGLER_RANK: number, names.STRAGGLER_PHASE: phase, names.STRAGGLER_DELAY: delay}
    return attributes


def _times_of(results: Any) -> Mapping[str, float]:
    times = getattr(results[0], _TIMES, None) if isinstance(results, list) and results else None
    return times if isinstance(times, dict) else {}


def _delay(seconds: float, other_ranks: Sequence[float]) -> float:
    """Return by how many seconds a rank is slower than the median of the others; 0 if that is usual."""
    if not other_ranks:
        return 0.0
    median = statistics.median(other_ranks)
    return seconds - median if seconds > median + _LEAST_DELAY and seconds > median * _LEAST_RATIO else 0.0


def sizes_in_metadata(metadata: Any) -> dict[int, int]:
    """Return the bytes of each rank according to the metadata of a checkpoint: files are called `__RANK_NUMBER.distcp`."""
    sizes: Counter[int] = Counter()
    for entry in (getattr(metadata, "storage_data", None) or {}).values():
        rank = str(getattr(entry, "relative_path", "")).removeprefix("__").partition("_")[0]
        if rank.isdigit():
            sizes[int(rank)] += getattr(entry, "length", 0)
    return sizes
