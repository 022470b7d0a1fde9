"""Runners that save and resume their state: an agent loop and a state graph."""

from ckpt_observe.core.runner.agent import Done, Outcome, run_agent
from ckpt_observe.core.runner.graph import Graph, GraphState, resume_graph, run_graph
from ckpt_observe.core.runner.session import RunSettings, Session
from ckpt_observe.core.runner.triggers import SaveOnSignal

__all__ = ["Done", "Graph", "GraphState", "Outcome", "RunSettings", "SaveOnSignal", "Session", "resume_graph", "run_agent", "run_graph"]
