"""Ranks of a distributed checkpoint, without torch: ids that all ranks derive, and which rank is slow."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from opentelemetry.context import get_current

from ckpt_observe.instrument import torch_ranks
from ckpt_observe.instrument.library_call import LibraryCall, LibraryOperation
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import Parent
from ckpt_observe.semconv import attributes as names


@dataclass(frozen=True)
class WriteResult:
    size_in_bytes: int


class Store(dict):
    """A store of a process group: the first value of a key stays."""

    def compare_set(self, key, _expected, value):
        return self.setdefault(key, value.encode())


@pytest.fixture
def process_group(monkeypatch):
    """Two ranks with one store."""
    store = Store()
    distributed = SimpleNamespace(distributed_c10d=SimpleNamespace(_get_default_store=lambda: store))
    monkeypatch.setitem(torch_ranks.sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(torch_ranks, "_saves", type(torch_ranks._saves)())
    monkeypatch.setattr(torch_ranks, "_run_ids", {})
    return store


def begin_as(rank, id="/a", world_size=2):
    """An operation of this rank, as if the process had no other rank in it."""
    call = LibraryCall("dcp", "save", lambda *_: {}, find_parent=torch_ranks.find_coordinator)
    operation = LibraryOperation(call, {names.RANK: rank, names.WORLD_SIZE: world_size, names.ID: id})
    operation.details = torch_ranks.RankTimes()
    torch_ranks.choose_ids(operation)
    torch_ranks._saves.clear() if rank == 0 else None
    operation.begin()
    operation.finish()
    return operation


def test_other_ranks_are_below_the_coordinator(recording, process_group):
    """Both derive the same ids, and the coordinator uses them."""
    begin_as(0)
    begin_as(1)
    coordinator, other = recording.spans()
    assert (other.trace_id, other.parent_span_id) == (coordinator.trace_id, coordinator.span_id)
    assert coordinator.parent_span_id == ""


def test_later_saves_to_the_same_path_are_other_traces(recording, process_group):
    """And so are saves of another run, which has another store."""
    begin_as(1)
    begin_as(1)
    process_group.clear()
    torch_ranks._run_ids.clear()
    begin_as(1)
    assert len({span.trace_id for span in recording.spans()}) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_sampling_is_decided_alike(recording, process_group, monkeypatch, rank):
    """A trace that is not sampled is not recorded by any rank, and leaves no context behind."""
    monkeypatch.setattr(recorder, "samples", lambda _trace, sampled: bool(sampled))
    before = get_current()
    begin_as(rank).suspend()
    assert recording.spans() == []
    assert get_current() == before


def test_given_parent_wins(recording, process_group, monkeypatch):
    """A program that was started within a trace stays in it."""
    monkeypatch.setattr(recorder, "process_parent", Parent("1" * 32, "2" * 16, sampled=True))
    begin_as(0)
    begin_as(1)
    assert {(span.trace_id, span.parent_span_id) for span in recording.spans()} == {("1" * 32, "2" * 16)}


def test_store_that_fails(recording, process_group, monkeypatch):
    """Ranks that cannot agree are roots."""
    monkeypatch.setattr(Store, "compare_set", lambda *_: 1 / 0)
    begin_as(0)
    begin_as(1)
    assert {span.parent_span_id for span in recording.spans()} == {""}


def results_of(*times):
    """The results of ranks with these times of the phase `write`."""
    ranks = [[WriteResult(10), WriteResult(number)] for number in range(len(times))]
    for results, seconds in zip(ranks, times, strict=True):
        torch_ranks.add_times(results, {"plan": 0.1, "write": seconds})
    return ranks


@pytest.mark.parametrize(
    ("times", "straggler"),
    [
        ((5.0, 5.1, 9.0), (2, 3.95)),
        ((5.0, 1.0), (0, 4.0)),
        ((5.0, 5.1, 5.9), None),  # less than a second
        ((100.0, 100.1, 103.0), None),  # less than 20 %
        ((0.1, 0.9), None),
        ((9.0,), None),
    ],
)
def test_straggler(times, straggler):
    """The rank that is a second and a fifth slower than the median of the others is named, with its phase and by how much."""
    attributes = torch_ranks.compare_ranks(results_of(*times))
    if straggler is None:
        assert names.STRAGGLER_RANK not in attributes
    else:
        rank, delay = straggler
        assert (attributes[names.STRAGGLER_RANK], attributes[names.STRAGGLER_PHASE]) == (rank, "write")
        assert attributes[names.STRAGGLER_DELAY] == pytest.approx(delay)


def test_ranks_without_times():
    """Ranks that are not observed, that wrote nothing, or whose results are of another kind, are not compared."""
    results = [*results_of(1.0), [], [WriteResult(5)], None, [7]]
    assert torch_ranks.compare_ranks(results) == {names.RANK_SIZES: [10, 0, 5, 0, 0]}
    torch_ranks.add_times([7], {"write": 1.0})
    torch_ranks.add_times(None, {"write": 1.0})


def test_times_are_not_part_of_a_result():
    """A result with times equals one without, and prints the same."""
    [[timed, _]] = results_of(1.0)
    assert (timed, repr(timed)) == (WriteResult(10), "WriteResult(size_in_bytes=10)")
