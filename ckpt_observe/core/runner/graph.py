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
from ckpt_observe.core.runner.session import RunSettings, Session
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, ConflictError


@dataclass(frozen=True, kw_only=True)
class GraphState:
    """The state that nodes receive. It is immutable: a node returns its updates, from which a new state is created."""

    run_id: str
    values: Mapping[str, Any] = field(default_factory=dict)
    node: str | None = None
    """The node that completed last."""
    steps: int = 0
    """Number of nodes completed, including those before a resume."""
    checkpointed_node: str | None = None
    checkpointed_at: dt.datetime | None = None
    """After which node the last checkpoint was saved, and when."""
    notes: Notes = field(default_factory=Notes, repr=False, compare=False)
    """Where a node adds notes to the metadata of the run's checkpoints."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def after(self, node: str, updates: Mapping[str, Any] | None) -> GraphState:
        if not isinstance(updates, Mapping | None):
            raise ConfigError(f"node {node!r} must return a mapping of updates or None, not {type(updates).__name__}")
        values = MappingProxyType({**self.values, **(updates or {})})
        return replace(self, values=values, node=node, steps=self.steps + 1)


Node = Callable[[GraphState], Mapping[str, Any] | None]
Edge = str | Callable[[GraphState], str]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes and edges of a computation. Names are checked on creation; the name that an edge function returns, during the run."""

    nodes: Mapping[str, Node]
    edges: Mapping[str, Edge]
    """The next node after each node: a name, or a function of the state that returns a name."""
    entry: str
    exits: frozenset[str]
    max_steps: int = 1000
    """Nodes that a run may complete, including those before a resume; then ConfigError is raised. It ends an infinite loop."""

    def __post_init__(self) -> None:
        if isinstance(self.exits, str):
            raise ConfigError(f"`exits` must be a set of names such as {{{self.exits!r}}}, not a string")
        object.__setattr__(self, "exits", frozenset(self.exits))
        references = {self.entry, *self.exits, *self.edges, *(edge for edge in self.edges.values() if isinstance(edge, str))}
        if unknown := sorted(references - self.nodes.keys()):
            raise ConfigError(f"the graph refers to unknown nodes: {', '.join(unknown)}; add them to `nodes`")
        if dead_ends := sorted(self.nodes.keys() - self.edges.keys() - self.exits):
            raise ConfigError(f"nodes without an edge: {', '.join(dead_ends)}; add an edge or make them exits")

    def next_node(self, state: GraphState) -> str:
        if state.node is None:
            return self.entry
        edge = self.edges[state.node]
        name = edge if isinstance(edge, str) else edge(state)
        if name not in self.nodes:
            raise ConfigError(f"the edge from {state.node!r} leads to {name!r}, which is not a node of the graph")
        return name


def run_graph(
    graph: Graph, values: Mapping[str, Any], checkpointer: Checkpointer, *, run_id: str | None = None, settings: RunSettings | None = None
) -> GraphState:
    """Run the graph from its entry to an exit and return the last state. Save after a completed node when the trigger is due.

    After success the checkpoints are removed, unless `preserve` of the settings is true. Without `run_id` the run gets a random id.
    """
    state = GraphState(run_id=run_id or secrets.token_hex(8), values=MappingProxyType(dict(values)))
    return _walk(graph, state, _session(checkpointer, state.run_id, settings))


def resume_graph(graph: Graph, run_id: str, checkpointer: Checkpointer, *, settings: RunSettings | None = None) -> GraphState:
    """Continue a run with the node after the one that was checkpointed last, and return the last state.

    CheckpointNotFoundError if the run has no checkpoint, ConflictError if it has reached an exit, ConfigError if the graph does not fit.
    """
    return _resume(graph, _session(checkpointer, run_id, settings))


def _resume(graph: Graph, session: Session) -> GraphState:
    restored, run_id = session.resume(), session.task
    if restored is None:
        raise CheckpointNotFoundError(f"run {run_id!r} has no checkpoint to resume from; was a trigger set?")
    state = _from_saved(restored.state, run_id)
    if state.node not in graph.nodes:
        raise ConfigError(
            f"run {run_id!r} stopped after {state.node!r}, which is not a node of this graph; resume it with the graph that saved it"
        )
    if state.node in graph.exits:
        raise ConflictError(f"run {run_id!r} has reached its exit {state.node!r}; there is nothing to resume", code="conflict.finished")
    session.report_resumed(restored.info, state.node)
    return _walk(graph, state, session)


def _session(checkpointer: Checkpointer, run_id: str, settings: RunSettings | None) -> Session:
    settings = settings or RunSettings()
    return Session(checkpointer, run_id, replace(settings, preserve=bool(settings.preserve)))


def _walk(graph: Graph, state: GraphState, session: Session) -> GraphState:
    state = replace(state, notes=session.notes)
    recoverable: tuple[GraphState, Any] = (state, None)  # saved after an error
    try:
        while state.node not in graph.exits:
            if state.steps >= graph.max_steps:
                raise ConfigError(
                    f"run {state.run_id!r} ran {graph.max_steps} nodes without reaching an exit; raise max_steps or fix the edges"
                )
            if session.saves:
                recoverable = (state, session.snapshot(_to_saved(_with_marker(state))))  # a node may change values and then fail
            name = graph.next_node(state)
            with session.timer(name):
                updates = graph.nodes[name](state)
            state = state.after(name, updates)
            recoverable = (state, _to_saved(_with_marker(state)))
            state = _save_if_due(state, session)
    except BaseException as error:
        _end_with_error(*recoverable, session, error)
        raise
    session.finish(state.steps, "completed", state.node)
    return state


def _end_with_error(state: GraphState, saved_form: Any, session: Session, error: BaseException) -> None:
    """Save the state after the last completed node, and the error. If no node completed or there is no trigger, only notify observers."""
    if not session.saves or state.node is None:
        session.finish(state.steps, "failed" if isinstance(error, Exception) else "interrupted", state.node)
    else:
        session.end_with_error(error, state.steps, saved_form, "running", state.node)


def _save_if_due(state: GraphState, session: Session) -> GraphState:
    checkpointed = _with_marker(state)
    info = session.complete_step(state.steps, state.values, _to_saved(checkpointed), node=state.node)
    return state if info is None else checkpointed


def _with_marker(state: GraphState) -> GraphState:
    return replace(state, checkpointed_node=state.node, checkpointed_at=dt.datetime.now(dt.UTC))


def _to_saved(state: GraphState) -> dict[str, Any]:
    """Return the state as a dict to be saved, without the notes: the session stores those in the metadata of the checkpoint."""
    return {**{name: value for name, value in vars(state).items() if name != "notes"}, "values": dict(state.values)}


def _from_saved(saved: Any, run_id: str) -> GraphState:
    try:
        state = GraphState(**{**saved, "values": MappingProxyType(saved["values"])})
    except (LookupError, TypeError) as error:
        raise ConfigError(f"the newest checkpoint of {run_id!r} was not saved by a graph; resume it with the code that saved it") from error
    return replace(state, run_id=run_id)  # a fork has another id than the run that saved it
