"""A state graph: nodes, edges that may depend on the state, and checkpoints between nodes."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.runner.notes import Notes
from ckpt_observe.core.runner.session import Session, Settings
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, ConflictError


@dataclass(frozen=True, kw_only=True)
class GraphState:
    """What nodes see. It is never changed: each node returns what is new, and a new state is made."""

    run_id: str
    values: Mapping[str, Any] = field(default_factory=dict)
    node: str | None = None
    """The node that completed last."""
    steps: int = 0
    """Nodes completed."""
    checkpointed_node: str | None = None
    checkpointed_at: dt.datetime | None = None
    notes: Notes = field(default_factory=Notes, repr=False, compare=False)
    """Where a node writes what the run's checkpoints shall tell besides the state."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def after(self, node: str, news: Mapping[str, Any] | None) -> GraphState:
        if not isinstance(news, Mapping | None):
            raise ConfigError(f"node {node!r} returns what is new as a mapping, or None, not {type(news).__name__}")
        values = MappingProxyType({**self.values, **(news or {})})
        return replace(self, values=values, node=node, steps=self.steps + 1)


Node = Callable[[GraphState], Mapping[str, Any] | None]
Edge = str | Callable[[GraphState], str]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The shape of a computation. Checked when made: an edge to nowhere is told then, not in the middle of a run."""

    nodes: Mapping[str, Node]
    edges: Mapping[str, Edge]
    """Where to go after a node: a name, or a function of the state that gives one."""
    entry: str
    exits: frozenset[str]
    max_steps: int = 1000
    """Nodes of one run: a loop that never ends does end."""

    def __post_init__(self) -> None:
        if isinstance(self.exits, str):
            raise ConfigError(f"exits are a set of names, such as {{{self.exits!r}}}, not one name")
        object.__setattr__(self, "exits", frozenset(self.exits))
        named = {self.entry, *self.exits, *self.edges, *(edge for edge in self.edges.values() if isinstance(edge, str))}
        if unknown := sorted(named - self.nodes.keys()):
            raise ConfigError(f"the graph names nodes that it does not have: {', '.join(unknown)}")
        if stuck := sorted(self.nodes.keys() - self.edges.keys() - self.exits):
            raise ConfigError(f"there is no way on from {', '.join(stuck)}: add an edge, or make it an exit")

    def next_node(self, state: GraphState) -> str:
        if state.node is None:
            return self.entry
        edge = self.edges[state.node]
        name = edge if isinstance(edge, str) else edge(state)
        if name not in self.nodes:
            raise ConfigError(f"the edge from {state.node!r} leads to {name!r}, which is no node of the graph")
        return name


def run_graph(
    graph: Graph, values: Mapping[str, Any], checkpointer: Checkpointer, *, run_id: str | None = None, settings: Settings | None = None
) -> GraphState:
    """Run from the entry to an exit. A checkpoint is made after a completed node, when the trigger says so."""
    state = GraphState(run_id=run_id or secrets.token_hex(8), values=MappingProxyType(dict(values)))
    return _walk(graph, state, _session(checkpointer, state.run_id, settings))


def resume_graph(graph: Graph, run_id: str, checkpointer: Checkpointer, *, settings: Settings | None = None) -> GraphState:
    """Go on with the node after the last checkpointed one.

    Without a checkpoint it is CheckpointNotFoundError; at an exit there is nothing left to do, which is ConflictError.
    """
    return _resume(graph, _session(checkpointer, run_id, settings))


def _resume(graph: Graph, session: Session) -> GraphState:
    restored, run_id = session.resume(), session.task
    if restored is None:
        raise CheckpointNotFoundError(f"run {run_id!r} has no checkpoint to resume from: had its settings a trigger?")
    state = _thawed(restored.state, run_id)
    if state.node not in graph.nodes:
        raise ConfigError(f"run {run_id!r} stopped after {state.node!r}, which is no node of this graph")
    if state.node in graph.exits:
        raise ConflictError(f"run {run_id!r} is at its exit {state.node!r}: there is nothing to resume", code="conflict.finished")
    session.resumed(restored.info, state.node)
    return _walk(graph, state, session)


def _session(checkpointer: Checkpointer, run_id: str, settings: Settings | None) -> Session:
    settings = settings or Settings()
    return Session(checkpointer, run_id, replace(settings, preserve=bool(settings.preserve)))


def _walk(graph: Graph, state: GraphState, session: Session) -> GraphState:
    state = replace(state, notes=session.notes)
    whole: tuple[GraphState, Any] = (state, None)  # what an error leaves to be saved
    try:
        while state.node not in graph.exits:
            if state.steps >= graph.max_steps:
                raise ConfigError(f"run {state.run_id!r} passed {graph.max_steps} nodes without reaching an exit")
            if session.saves:
                whole = (state, session.frozen(_frozen(_marked(state))))  # a node may change what the state holds, and fail
            name = graph.next_node(state)
            with session.timed(name):
                news = graph.nodes[name](state)
            state = state.after(name, news)
            whole = (state, _frozen(_marked(state)))
            state = _checkpointed(state, session)
    except BaseException as error:
        _ended(*whole, session, error)
        raise
    session.finished(state.steps, "completed", state.node)
    return state


def _ended(state: GraphState, whole: Any, session: Session, error: BaseException) -> None:
    """What completed is kept with the error, to go on from; where nothing did, or the run is not checkpointed, the observers are told."""
    if not session.saves or state.node is None:
        session.finished(state.steps, "failed" if isinstance(error, Exception) else "interrupted", state.node)
    else:
        session.ended_by(error, state.steps, whole, "running", state.node)


def _checkpointed(state: GraphState, session: Session) -> GraphState:
    marked = _marked(state)
    info = session.completed(state.steps, state.values, _frozen(marked), node=state.node)
    return state if info is None else marked


def _marked(state: GraphState) -> GraphState:
    return replace(state, checkpointed_node=state.node, checkpointed_at=dt.datetime.now(dt.UTC))


def _frozen(state: GraphState) -> dict[str, Any]:
    """The state as it is saved; the notes are in the metadata."""
    return {**{name: value for name, value in vars(state).items() if name != "notes"}, "values": dict(state.values)}


def _thawed(saved: Any, run_id: str) -> GraphState:
    try:
        state = GraphState(**{**saved, "values": MappingProxyType(saved["values"])})
    except (LookupError, TypeError) as error:
        raise ConfigError(f"the newest checkpoint of {run_id!r} is not that of a graph: resume it with what saved it") from error
    return replace(state, run_id=run_id)  # of a fork, it is not the one that saved it
