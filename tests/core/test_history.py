"""References to earlier checkpoints, forks, queries, comparison and verification."""

from __future__ import annotations

import datetime as dt
import os
import re

import msgspec
import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.compare import MISSING, compare, values
from ckpt_observe.core.query import Query
from ckpt_observe.core.runner import Done, RunSettings, run_agent
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, IntegrityError, InvalidNameError


@pytest.fixture
def checkpointer():
    checkpointer = Checkpointer("memory://")
    for step in range(5):
        checkpointer.save(
            "run", {"n": step}, step=step, id=f"s{step}", metadata={"lr": 0.1 * (step % 2)}, tags=["even"] if step % 2 == 0 else []
        )
    return checkpointer


@pytest.mark.parametrize(("reference", "id"), [("latest", "s4"), ("latest~0", "s4"), ("latest~2", "s2"), ("step:3", "s3"), ("s1", "s1")])
def test_reference_names_a_checkpoint(checkpointer, reference, id):
    """A reference names a checkpoint by id, by step, or counted back from the newest."""
    assert checkpointer.resolve("run", reference).id == id


def test_reference_by_time(checkpointer):
    """`at:` names the newest checkpoint at that time."""
    third = checkpointer.resolve("run", "s2")
    assert checkpointer.resolve("run", f"at:{third.created.isoformat()}") == third
    with pytest.raises(ConfigError):
        checkpointer.resolve("run", "at:yesterday")


@pytest.mark.parametrize("reference", ["latest~5", "step:99", "nope", "at:2001-01-01"])
def test_reference_without_a_match(checkpointer, reference):
    """A reference that matches no checkpoint raises CheckpointNotFoundError."""
    with pytest.raises(CheckpointNotFoundError):
        checkpointer.resolve("run", reference)


@pytest.mark.parametrize("reference", [None, 3, "", "\ud800"])
def test_invalid_reference_is_refused(checkpointer, reference):
    """A reference that is not a valid name raises InvalidNameError."""
    with pytest.raises(InvalidNameError, match="the reference"):
        checkpointer.resolve("run", reference)


def test_fork_starts_a_new_task(checkpointer):
    """A fork has the state of its origin and names it as its parent; the origin stays unchanged."""
    info = checkpointer.fork("run", "branch", "s2")
    assert checkpointer.load("branch") == {"n": 2}
    assert (info.parent, info.parent_task, info.step) == ("s2", "run", 2)
    assert len(checkpointer.list("run")) == 5


def test_parent_is_the_checkpoint_saved_or_loaded_last(checkpointer):
    """The parent of a checkpoint is the one that was saved or loaded last."""
    assert [info.parent for info in checkpointer.list("run")] == ["s3", "s2", "s1", "s0", None]
    checkpointer.restore("run", "s1")
    assert checkpointer.save("run", {}).parent == "s1"


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        (Query(min_step=3), ["s4", "s3"]),
        (Query(max_step=1), ["s1", "s0"]),
        (Query(parameters={"lr": 0.1}), ["s3", "s1"]),
        (Query(parameters={"lr": None}), []),
        (Query(tag="even", limit=2), ["s4", "s2"]),
        (Query(status="failed"), ["f"]),
        (Query(error_class="capacity"), ["f"]),
        (Query(error_class="storage"), []),
        (Query(task="other"), ["f"]),
        (Query(min_size=5000), ["f"]),
        (Query(max_size=10), []),
        (Query(until=dt.datetime(2001, 1, 1, tzinfo=dt.UTC)), []),
        (Query(since=dt.datetime(2001, 1, 1, tzinfo=dt.UTC), limit=1), ["f"]),
    ],
)
def test_queries(checkpointer, query, ids):
    """A query selects by time, task, step, status, error class, parameter, tag and size, over all tasks."""
    checkpointer.save("other", {"text": "x" * 5000}, id="f", status="failed", metadata={"error": {"class": "capacity"}})
    assert [info.id for info in checkpointer.find(query)] == ids


@pytest.mark.parametrize(
    "arguments",
    [
        *({"limit": -1}, {"limit": 1.5}, {"min_step": "a"}, {"max_size": 2**70}, {"min_size": -1}, {"task": "\ud800"}, {"task": ""}),
        *({"status": "\ud800"}, {"status": object()}, {"tag": 5}, {"error_class": ["x"]}),
    ],
)
def test_invalid_query_is_refused(arguments):
    """An invalid query raises when it is created, so that all stores behave the same."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Query(**arguments)


def test_query_finds_runs_by_their_configuration(checkpointer):
    """A query selects runs by the configuration of their runner."""
    for lr in (0.1, 0.2):
        run_agent(
            f"run-{lr}", lambda state, session: Done(state), 0, checkpointer, settings=RunSettings(configuration={"lr": lr, "seed": 1})
        )
    assert [info.task for info in checkpointer.find(Query(parameters={"lr": 0.2, "reason": "final"}))] == ["run-0.2"]


@pytest.mark.parametrize("moment", [dt.datetime(2026, 1, 1), "yesterday", 1767225600], ids=str)  # noqa: DTZ001
@pytest.mark.parametrize("bound", ["since", "until"])
def test_time_without_a_zone_is_refused(bound, moment):
    """A time without a zone raises ConfigError when the query is created, not a TypeError in some store."""
    with pytest.raises(ConfigError, match="with a time zone"):
        Query(**{bound: moment})


def test_compare_reports_keys_and_sizes(checkpointer):
    """Comparing two checkpoints, also of different tasks, lists added, removed, changed and unchanged keys and their growth; values are read on demand."""
    old = checkpointer.save("one", {"same": [1, 2], "gone": 1, "grown": "x"})
    new = checkpointer.save("two", {"same": [1, 2], "grown": "xxx", "new": None})
    difference = compare(old, new)
    assert (difference.added, difference.removed, difference.changed, difference.unchanged) == (("new",), ("gone",), ("grown",), ("same",))
    assert difference.growth == {"same": 0, "gone": -1, "grown": 2, "new": 4}
    assert difference.changed_ratio == pytest.approx(9 / 14)
    assert values(checkpointer, difference) == {"grown": ("x", "xxx"), "gone": (1, MISSING), "new": (MISSING, None)}


def test_compare_takes_linear_time(checkpointer):
    """Comparing looks up each key directly; searching 10,000 keys one by one would take 50 million comparisons."""
    comparisons = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            comparisons.append(other)
            return str.__eq__(self, other)

    info = checkpointer.save("one", {str(n): n for n in range(100)})
    old, new = (msgspec.structs.replace(info, keys={Name(name): key for name, key in info.keys.items()}) for _ in range(2))
    difference = compare(old, new)
    assert difference.unchanged == tuple(info.keys)
    assert len(comparisons) < 100 * 20


def test_verify_reports_and_quarantines_damage(tmp_path):
    """`verify` names each damaged checkpoint and the reason, and quarantines it on request."""
    checkpointer = Checkpointer(tmp_path)
    for n in range(4):
        checkpointer.save("t", {"n": n}, id=f"c{n}")
    for id, cut in (("c1", -1), ("c2", 30)):
        path = tmp_path / "t" / f"{id}.ckpt"
        path.write_bytes(path.read_bytes()[:cut])
    codes = {finding.id: finding.code for finding in checkpointer.verify() if not finding.good}
    assert codes == {"c1": "integrity.truncated", "c2": "integrity.truncated"}
    assert len(checkpointer.verify("t", sample=2)) == 2
    moved = [finding.id for finding in checkpointer.verify("t", quarantine=True) if finding.quarantined]
    assert sorted(moved) == ["c1", "c2"]
    assert all(finding.good for finding in checkpointer.verify())
    assert sorted(re.sub(r"\.\w{8}\.", ".", path.name) for path in (tmp_path / "t").iterdir()) == ["c0.ckpt", "c1.bad", "c2.bad", "c3.ckpt"]


def test_complexity_of_the_state_is_in_the_header(checkpointer):
    """The header has the depth, the number of values, the keys and the type of the state."""
    info = checkpointer.save("t", {"a": [1, [2, {"b": 3}]], "c": None})
    assert (info.depth, info.items, len(info.keys), info.state_type) == (5, 8, 2, "dict")


def test_verify_continues_if_quarantine_fails(tmp_path, monkeypatch):
    """A damaged checkpoint that was removed meanwhile, or cannot be moved, does not stop the verification of the others."""
    checkpointer = Checkpointer(tmp_path)
    for n in range(3):
        checkpointer.save("t", {"n": n}, id=f"c{n}")
        (tmp_path / "t" / f"c{n}.ckpt").write_bytes(b"")
    move = checkpointer.store.quarantine

    def refuse_one(task, id):
        if id == "c1":
            raise CheckpointNotFoundError("removed meanwhile")
        move(task, id)

    monkeypatch.setattr(checkpointer.store, "quarantine", refuse_one)
    results = {finding.id: (finding.good, finding.quarantined) for finding in checkpointer.verify("t", quarantine=True)}
    assert results == {"c0": (False, True), "c1": (False, False), "c2": (False, True)}


def test_verify_refuses_invalid_arguments(checkpointer):
    """A negative sample and an invalid task name are refused."""
    with pytest.raises(ConfigError, match="-1"):
        checkpointer.verify(sample=-1)
    with pytest.raises(InvalidNameError):
        checkpointer.verify("\ud800")


def test_damaged_checkpoints_count_in_references(tmp_path):
    """If the newest checkpoint is damaged, `latest~1` is still the one before it, and a reference to the damaged one raises IntegrityError."""
    checkpointer = Checkpointer(tmp_path)
    for n in range(3):
        checkpointer.save("t", {"n": n}, id=f"c{n}", step=n)
    (tmp_path / "t" / "c2.ckpt").write_bytes(b"damaged")
    assert checkpointer.resolve("t", "latest~1").id == "c1"
    for reference in ("latest", "latest~0", "c2"):
        with pytest.raises(IntegrityError):
            checkpointer.resolve("t", reference)


@pytest.fixture
def damaged_in_the_middle(tmp_path):
    """Save c0, c1 and c2; the header of c1 is damaged. Return the directory."""
    checkpointer = Checkpointer(tmp_path)
    for n in range(3):
        checkpointer.save("t", {"n": n}, id=f"c{n}", step=n)
    path = tmp_path / "t" / "c1.ckpt"
    path.write_bytes(b"damaged")
    os.utime(path, (0, 0))
    return tmp_path


def test_counting_back_reports_damage(damaged_in_the_middle, caplog):
    """If `latest~1` is damaged, it raises an error that names it; with fallback, the next good one is used and a warning is logged."""
    with pytest.raises(IntegrityError, match="'c1'"):
        Checkpointer(damaged_in_the_middle).resolve("t", "latest~1")
    assert Checkpointer(damaged_in_the_middle).resolve("t", "latest").id == "c2"
    assert Checkpointer(damaged_in_the_middle, fallback=True).resolve("t", "latest~1").id == "c0"
    assert "'c1'" in caplog.text


def test_counting_back_ignores_a_checkpoint_removed_meanwhile(tmp_path, monkeypatch):
    """A checkpoint that another program removes during the listing counts as gone, not as damaged."""
    checkpointer = Checkpointer(tmp_path)
    for n in range(3):
        checkpointer.save("t", {"n": n}, id=f"c{n}")
    monkeypatch.setattr(checkpointer.store, "ids", lambda task: ("c0", "c1", "c2", "removed"))
    assert checkpointer.resolve("t", "latest~1").id == "c1"


def test_fallback_reports_all_skipped_checkpoints(damaged_in_the_middle):
    """`skipped` also contains checkpoints whose header is damaged, which no listing contains."""
    path = damaged_in_the_middle / "t" / "c2.ckpt"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    restored = Checkpointer(damaged_in_the_middle, fallback=True).restore("t")
    assert (restored.info.id, restored.skipped) == ("c0", ("c2", "c1"))


def test_verify_one_checkpoint(tmp_path):
    """`verify` can check a single checkpoint; a missing one raises CheckpointNotFoundError."""
    checkpointer = Checkpointer(tmp_path)
    for n in range(2):
        checkpointer.save("t", {"n": n}, id=f"c{n}")
    (tmp_path / "t" / "c1.ckpt").write_bytes(b"damaged")
    assert [(finding.id, finding.good) for finding in checkpointer.verify("t", "c0")] == [("c0", True)]
    assert [(finding.id, finding.good) for finding in checkpointer.verify("t", "c1")] == [("c1", False)]
    with pytest.raises(CheckpointNotFoundError):
        checkpointer.verify("t", "c2")


@pytest.mark.parametrize("store", ["memory", "file", "sqlite"])
@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "x" * 257, 5])
def test_open_refuses_names_as_load_does(tmp_path, store, name):
    """`open` and `load` raise InvalidNameError for a hostile name, with every store."""
    url = {"memory": "memory://", "file": str(tmp_path / "f"), "sqlite": f"sqlite://{tmp_path}/s.db"}[store]
    checkpointer = Checkpointer(url)
    for names in ((name, "x"), ("t", name), (name, None)):
        with pytest.raises(InvalidNameError):
            checkpointer.open(*names)
        with pytest.raises(InvalidNameError):
            checkpointer.load(*names)


@pytest.mark.parametrize("same_checkpointer", [True, False], ids=["same checkpointer", "another checkpointer"])
def test_fork_does_not_change_its_origin(same_checkpointer):
    """After a fork of an old checkpoint, the next save of the origin follows its own newest one; the fork has the tags of its origin."""
    store = MemoryStore()
    checkpointer = Checkpointer(store)
    for n in range(3):
        checkpointer.save("t", {"n": n}, id=f"s{n}", tags=["best"] if n == 0 else [])
    if not same_checkpointer:
        checkpointer = Checkpointer(store)
    assert checkpointer.fork("t", "u", "s0").tags == ("best",)
    assert checkpointer.save("t", {"n": 3}).parent == ("s2" if same_checkpointer else None)
    assert checkpointer.save("u", {"n": 1}).parent == checkpointer.list("u")[1].id


def test_compare_between_stores():
    """Checkpoints of two stores can be compared: added and removed keys have their values, and a state without keys differs as a whole."""
    first, second = Checkpointer("memory://"), Checkpointer("memory://")
    old, new = first.save("t", {"same": 1, "p": 1, "gone": None}), second.save("t", {"same": 1, "p": 5, "added": [2]})
    difference = compare(old, new)
    assert values(first, difference, second) == {"p": (1, 5), "gone": (None, MISSING), "added": (MISSING, [2])}
    lists = [first.save("u", [1, 2, n]) for n in (3, 3, 4)]
    assert [compare(lists[0], other).changed_ratio for other in lists[1:]] == [0.0, 1.0]
    assert compare(lists[0], new).changed_ratio == 1.0
