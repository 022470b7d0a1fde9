"""The state graph."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools

import pytest

from ckpt_observe.core.runner import Graph, RunSettings, resume_graph, run_graph
from ckpt_observe.core.runner.triggers import EverySteps, Never, When
from ckpt_observe.errors import AccessError, CapacityError, CheckpointNotFoundError, ConfigError, ConflictError


def visit(name, visited=None):
    def node(state):
        if visited is not None:
            visited.append(name)
        return {"path": [*state.values.get("path", []), name]}

    return node


def chain(visited=None, **nodes):
    """a > b > c > d, where d is the exit; nodes can be replaced."""
    names = "abcd"
    return Graph(
        nodes={name: nodes.get(name, visit(name, visited)) for name in names},
        edges=dict(itertools.pairwise(names)),
        entry="a",
        exits=frozenset("d"),
    )


def crash(state):
    raise RuntimeError("crash")


KEEP = RunSettings(trigger=EverySteps(1), preserve=True)


def test_conditional_edges_and_exit(checkpointer):
    """G1: an edge may depend on the state; the run ends at an exit."""
    graph = Graph(
        nodes={"count": lambda state: {"n": state["n"] + 1}, "end": lambda state: None},
        edges={"count": lambda state: "count" if state["n"] < 3 else "end"},
        entry="count",
        exits=frozenset({"end"}),
    )
    final = run_graph(graph, {"n": 0}, checkpointer)
    assert (final["n"], final.node, final.steps) == (3, "end", 4)


def test_iteration_limit(checkpointer):
    """G1: a loop without end is stopped by the limit."""
    graph = Graph(nodes={"a": lambda state: None, "b": lambda state: None}, edges={"a": "a"}, entry="a", exits=frozenset("b"), max_steps=10)
    with pytest.raises(ConfigError, match="10 nodes"):
        run_graph(graph, {}, checkpointer)


def test_state_is_immutable(checkpointer):
    """G1: a node cannot change the state it is given."""

    def meddle(state):
        with pytest.raises(TypeError):
            state.values["x"] = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            state.node = "other"
        return {"tried": True}

    assert run_graph(chain(b=meddle), {}, checkpointer)["tried"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"entry": "x"}, "unknown nodes: x"), ({"exits": frozenset()}, "nodes without an edge: d"), ({"edges": {"a": "nowhere"}}, "nowhere")],
)
def test_impossible_graphs_are_refused(wrong, message):
    """G1: a graph that cannot run is refused when it is made."""
    good = chain()
    with pytest.raises(ConfigError, match=message):
        Graph(**{"nodes": good.nodes, "edges": good.edges, "entry": "a", "exits": good.exits, **wrong})


@pytest.mark.parametrize(("every", "nodes"), [(0, []), (1, ["d", "c", "b", "a"]), (2, ["d", "b"]), (3, ["c"])])
def test_saves_every_n_nodes(checkpointer, every, nodes):
    """G2: after every N completed nodes; 0 is off."""
    run_graph(chain(), {}, checkpointer, run_id="r", settings=RunSettings(trigger=EverySteps(every), preserve=True))
    assert [info.metadata["node"] for info in checkpointer.list("r")] == nodes


def test_predicate_checkpoints(checkpointer):
    """G8: a checkpoint when the state says so."""
    settings = RunSettings(trigger=When(lambda moment: moment.state["path"][-1] == "b"), preserve=True)
    run_graph(chain(), {}, checkpointer, run_id="r", settings=settings)
    assert [info.metadata["node"] for info in checkpointer.list("r")] == ["b"]


def test_resume_goes_on_with_the_next_node(checkpointer):
    """G3: no node that was checkpointed runs again; run id, node and time of the checkpoint are in the state."""
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {"x": 1}, checkpointer, run_id="r", settings=KEEP)
    visited = []
    final = resume_graph(chain(visited), "r", checkpointer, settings=KEEP)
    assert visited == ["c", "d"]
    assert final["path"] == ["a", "b", "c", "d"]
    assert (final["x"], final.run_id, final.checkpointed_node) == (1, "r", "d")
    assert abs(final.checkpointed_at - checkpointer.list("r")[0].created) < dt.timedelta(seconds=5)


def test_a_fork_goes_on_under_its_own_run_id(checkpointer):
    """G3: its nodes, its result and its checkpoints have the id it is resumed by, not that of the run it was forked from."""
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="one", settings=KEEP)
    checkpointer.fork("one", "two")
    final = resume_graph(chain(c=lambda state: {"seen": state.run_id}), "two", checkpointer, settings=KEEP)
    assert (final["seen"], final.run_id, checkpointer.load("two")["run_id"]) == ("two", "two", "two")


def test_resume_without_checkpoint_or_at_the_exit_is_a_clear_error(checkpointer):
    """G3: both are told for what they are."""
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint to resume"):
        resume_graph(chain(), "r", checkpointer)
    run_graph(chain(), {}, checkpointer, run_id="r", settings=KEEP)
    with pytest.raises(ConflictError, match="nothing to resume"):
        resume_graph(chain(), "r", checkpointer)


@pytest.mark.parametrize("state", [{"n": 1}, [1], 1, {"run_id": "r", "values": [1]}, {"values": {}, "other": 1}])
def test_what_no_graph_saved_is_not_resumed(checkpointer, state):
    """G3: a checkpoint of something else is told for what it is."""
    checkpointer.save("r", state)
    with pytest.raises(ConfigError, match="was not saved by a graph"):
        resume_graph(chain(), "r", checkpointer)


@pytest.mark.parametrize("fail_fast", [True, False])
def test_failed_save_stops_the_run_by_choice(checkpointer, monkeypatch, fail_fast):
    """G4: fail-fast ends the run at once; otherwise it goes on, and the observers are told."""
    events, visited = [], []

    def full(info, blob):
        raise CapacityError("full")

    monkeypatch.setattr(checkpointer.store, "put", full)
    settings = RunSettings(trigger=EverySteps(1), fail_fast=fail_fast, observers=[events.append])
    if fail_fast:
        with pytest.raises(CapacityError):
            run_graph(chain(visited), {}, checkpointer, settings=settings)
        assert visited == ["a"]
    else:
        run_graph(chain(visited), {}, checkpointer, settings=settings)
        assert visited == ["a", "b", "c", "d"]
    assert events[0].moment == "failed"
    assert events[0].node == "a"


@pytest.mark.parametrize("preserve", [True, False, None])
def test_clean_up_after_success_unless_preserved(checkpointer, preserve):
    """G5: the checkpoints of a successful run go, unless they are to stay; those of a failed run always stay."""
    settings = RunSettings(trigger=EverySteps(1), preserve=preserve)
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="failed", settings=settings)
    assert [info.status for info in checkpointer.list("failed")] == ["failed", "running", "running"]
    run_graph(chain(), {}, checkpointer, run_id="good", settings=settings)
    assert len(checkpointer.list("good")) == (4 if preserve else 0)


def test_failed_clean_up_does_not_fail_the_run(checkpointer, monkeypatch):
    """G5: the result of a run that succeeded is given back, also where its checkpoints cannot be removed; the observers are told."""

    def refuse(task, id):
        raise AccessError("not allowed")

    monkeypatch.setattr(checkpointer.store, "delete", refuse)
    events = []
    final = run_graph(
        chain(), {}, checkpointer, run_id="r", settings=RunSettings(trigger=EverySteps(2), preserve=False, observers=[events.append])
    )
    assert final["path"] == ["a", "b", "c", "d"]
    assert [event.moment for event in events] == ["saved", "saved", "failed", "finished"]


def test_checkpoint_tells_about_its_run(checkpointer):
    """D3: nodes note choices and renderings; timings, resources and configuration are there too."""

    def choose(state):
        state.notes.choice("model", "small", "cheap enough")
        state.notes.rendering("greeting", "Hello {name}", "Hello Ann")

    run_graph(
        chain(b=choose),
        {},
        checkpointer,
        run_id="r",
        settings=RunSettings(trigger=EverySteps(1), preserve=True, configuration={"temperature": 0}),
    )
    first, metadata = checkpointer.list("r")[-1].metadata, checkpointer.list("r")[0].metadata
    assert "choices" not in first
    assert metadata["choices"] == [{"what": "model", "chosen": "small", "reason": "cheap enough"}]
    assert metadata["renderings"][0]["after"] == "Hello Ann"
    assert set(metadata["timings"]) == set("abcd")
    assert metadata["configuration"] == {"temperature": 0}
    assert metadata["resources"]["memory_peak_bytes"] > 1_000_000


def test_events_saved_loaded_resumed(checkpointer):
    """G7: with node and run id."""
    events = []
    settings = RunSettings(trigger=EverySteps(2), observers=[events.append])
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="r", settings=settings)
    resume_graph(chain(), "r", checkpointer, settings=settings)
    assert {event.task for event in events} == {"r"}
    assert [(event.moment, event.node, event.status) for event in events] == [
        ("saved", "b", "running"),
        ("saved", "b", "failed"),
        ("finished", "b", "failed"),
        ("loaded", "b", "failed"),
        ("resumed", "b", "failed"),
        ("saved", "d", "running"),
        ("finished", "d", "completed"),
    ]


def test_failed_node_is_told_and_kept(checkpointer):
    """D3, G3, G7: a node that fails, and changes what it was given before, leaves the state before it with the error and its stack."""

    def half_done(state):
        state["list"].append("half")
        raise RuntimeError("broken pipe")

    with pytest.raises(RuntimeError):
        run_graph(chain(c=half_done), {"list": []}, checkpointer, run_id="r", settings=RunSettings(trigger=EverySteps(100)))
    [info] = checkpointer.list("r")
    error = info.metadata["error"]
    assert (info.status, info.metadata["node"], error["type"], error["message"]) == ("failed", "b", "RuntimeError", "broken pipe")
    assert "half_done" in error["stack"]
    assert checkpointer.load("r")["values"]["list"] == []
    assert resume_graph(chain(), "r", checkpointer, settings=KEEP).node == "d"


@pytest.mark.parametrize("trigger", [Never(), EverySteps(0)])
def test_run_without_checkpoints_leaves_none_when_it_fails(checkpointer, trigger):
    """G2: where checkpoints are off a failure is told to the observers, and nothing is saved."""
    events = []
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="r", settings=RunSettings(trigger=trigger, observers=[events.append]))
    assert [(event.moment, event.node, event.status) for event in events] == [("finished", "b", "failed")]
    assert checkpointer.list("r") == []
