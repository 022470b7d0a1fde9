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
    """Return a node that appends its name to the path."""

    def node(state):
        if visited is not None:
            visited.append(name)
        return {"path": [*state.values.get("path", []), name]}

    return node


def chain(visited=None, **nodes):
    """Return the graph a > b > c > d with the exit d. Nodes can be replaced."""
    names = "abcd"
    return Graph(
        nodes={name: nodes.get(name, visit(name, visited)) for name in names},
        edges=dict(itertools.pairwise(names)),
        entry="a",
        exits=frozenset("d"),
    )


def crash(state):
    raise RuntimeError("crash")


PRESERVE = RunSettings(trigger=EverySteps(1), preserve=True)


def test_conditional_edges_and_exit(checkpointer):
    """An edge may depend on the state, and the run ends at an exit."""
    graph = Graph(
        nodes={"count": lambda state: {"n": state["n"] + 1}, "end": lambda state: None},
        edges={"count": lambda state: "count" if state["n"] < 3 else "end"},
        entry="count",
        exits=frozenset({"end"}),
    )
    final = run_graph(graph, {"n": 0}, checkpointer)
    assert (final["n"], final.node, final.steps) == (3, "end", 4)


def test_iteration_limit(checkpointer):
    """`max_steps` stops an endless loop."""
    graph = Graph(nodes={"a": lambda state: None, "b": lambda state: None}, edges={"a": "a"}, entry="a", exits=frozenset("b"), max_steps=10)
    with pytest.raises(ConfigError, match="10 nodes"):
        run_graph(graph, {}, checkpointer)


def test_state_is_immutable(checkpointer):
    """A node cannot change the state it receives."""

    def meddle(state):
        with pytest.raises(TypeError):
            state.values["x"] = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            state.node = "other"
        return {"tried": True}

    assert run_graph(chain(b=meddle), {}, checkpointer)["tried"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"entry": "x"}, "unknown nodes: x"), ({"exits": frozenset()}, "nodes without an edge: d"), ({"edges": {"a": "nowhere"}}, "nowhere")],
)
def test_invalid_graphs_are_refused(arguments, message):
    """A graph that cannot run is refused when it is created."""
    good = chain()
    with pytest.raises(ConfigError, match=message):
        Graph(**{"nodes": good.nodes, "edges": good.edges, "entry": "a", "exits": good.exits, **arguments})


@pytest.mark.parametrize(("every", "nodes"), [(0, []), (1, ["d", "c", "b", "a"]), (2, ["d", "b"]), (3, ["c"])])
def test_saves_every_n_nodes(checkpointer, every, nodes):
    """A graph is saved after every N completed nodes; 0 turns saves off."""
    run_graph(chain(), {}, checkpointer, run_id="r", settings=RunSettings(trigger=EverySteps(every), preserve=True))
    assert [info.metadata["node"] for info in checkpointer.list("r")] == nodes


def test_save_by_predicate(checkpointer):
    """A predicate on the state can trigger a save."""
    settings = RunSettings(trigger=When(lambda moment: moment.state["path"][-1] == "b"), preserve=True)
    run_graph(chain(), {}, checkpointer, run_id="r", settings=settings)
    assert [info.metadata["node"] for info in checkpointer.list("r")] == ["b"]


def test_resume_continues_with_the_next_node(checkpointer):
    """No checkpointed node runs again; the state has the run id and the node and time of its checkpoint."""
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {"x": 1}, checkpointer, run_id="r", settings=PRESERVE)
    visited = []
    final = resume_graph(chain(visited), "r", checkpointer, settings=PRESERVE)
    assert visited == ["c", "d"]
    assert final["path"] == ["a", "b", "c", "d"]
    assert (final["x"], final.run_id, final.checkpointed_node) == (1, "r", "d")
    assert abs(final.checkpointed_at - checkpointer.list("r")[0].created) < dt.timedelta(seconds=5)


def test_fork_has_its_own_run_id(checkpointer):
    """The nodes, the result and the checkpoints of a resumed fork have its own run id, not that of its origin."""
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="origin", settings=PRESERVE)
    checkpointer.fork("origin", "fork")
    final = resume_graph(chain(c=lambda state: {"node_run_id": state.run_id}), "fork", checkpointer, settings=PRESERVE)
    assert (final["node_run_id"], final.run_id, checkpointer.load("fork")["run_id"]) == ("fork", "fork", "fork")


def test_resume_without_a_checkpoint_or_at_the_exit(checkpointer):
    """Resuming a run without checkpoints or a completed run raises an error that says so."""
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint to resume"):
        resume_graph(chain(), "r", checkpointer)
    run_graph(chain(), {}, checkpointer, run_id="r", settings=PRESERVE)
    with pytest.raises(ConflictError, match="nothing to resume"):
        resume_graph(chain(), "r", checkpointer)


@pytest.mark.parametrize("state", [{"n": 1}, [1], 1, {"run_id": "r", "values": [1]}, {"values": {}, "other": 1}])
def test_checkpoint_that_no_graph_saved_is_refused(checkpointer, state):
    """A checkpoint that was not saved by a graph raises ConfigError."""
    checkpointer.save("r", state)
    with pytest.raises(ConfigError, match="was not saved by a graph"):
        resume_graph(chain(), "r", checkpointer)


@pytest.mark.parametrize("fail_fast", [True, False])
def test_fail_fast(checkpointer, monkeypatch, fail_fast):
    """With `fail_fast`, a failed save ends the run; otherwise the run continues. Observers receive the failure in both cases."""
    events, visited = [], []

    def full_disk(info, blob):
        raise CapacityError("full")

    monkeypatch.setattr(checkpointer.store, "put", full_disk)
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
    """The checkpoints of a successful run are removed unless `preserve` is set; those of a failed run always stay."""
    settings = RunSettings(trigger=EverySteps(1), preserve=preserve)
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="failed", settings=settings)
    assert [info.status for info in checkpointer.list("failed")] == ["failed", "running", "running"]
    run_graph(chain(), {}, checkpointer, run_id="good", settings=settings)
    assert len(checkpointer.list("good")) == (4 if preserve else 0)


def test_failed_clean_up_does_not_fail_the_run(checkpointer, monkeypatch):
    """If the checkpoints of a successful run cannot be removed, its result is still returned, and observers receive the failure."""

    def refuse(task, id):
        raise AccessError("not allowed")

    monkeypatch.setattr(checkpointer.store, "delete", refuse)
    events = []
    final = run_graph(
        chain(), {}, checkpointer, run_id="r", settings=RunSettings(trigger=EverySteps(2), preserve=False, observers=[events.append])
    )
    assert final["path"] == ["a", "b", "c", "d"]
    assert [event.moment for event in events] == ["saved", "saved", "failed", "finished"]


def test_checkpoint_describes_its_run(checkpointer):
    """A checkpoint has the choices and renderings that nodes noted, and timings, resources and configuration."""

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


def test_events_of_a_run(checkpointer):
    """Observers receive saved, loaded, resumed and finished events with node and run id."""
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


def test_failed_node_leaves_the_state_before_it(checkpointer):
    """If a node changes its input and then fails, the checkpoint has the state before it, and the error with its stack."""

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
    assert resume_graph(chain(), "r", checkpointer, settings=PRESERVE).node == "d"


@pytest.mark.parametrize("trigger", [Never(), EverySteps(0)])
def test_failed_run_without_checkpoints_saves_nothing(checkpointer, trigger):
    """If checkpoints are off, observers receive the failure, and nothing is saved."""
    events = []
    with pytest.raises(RuntimeError):
        run_graph(chain(c=crash), {}, checkpointer, run_id="r", settings=RunSettings(trigger=trigger, observers=[events.append]))
    assert [(event.moment, event.node, event.status) for event in events] == [("finished", "b", "failed")]
    assert checkpointer.list("r") == []
