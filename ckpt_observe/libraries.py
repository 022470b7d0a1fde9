"""The checkpoint libraries that are observed, and how a program selects them. The table in the README is generated from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ckpt_observe import environment
from ckpt_observe.support import entry_points
from ckpt_observe.support.parsing import parse_choice, parse_names

ENTRY_POINT_GROUP: Final = "ckpt_observe.instrumentors"
"""Other packages announce their instrumentors in this group of entry points."""


class Library(NamedTuple):
    """A library with a bundled instrumentor."""

    title: str
    instrumentor: str
    """`module:class`, imported when the library is."""
    module: str
    """The module of the library whose import loads the instrumentor. Not a namespace package, which is never executed."""
    default: bool = True
    """False for libraries that also write other things than checkpoints: they are observed if the program asks for it."""


_SESSIONS: Final = "ckpt_observe.instrument.agent_sessions"

# fmt: off
LIBRARIES: Final[dict[str, Library]] = {
    "reference": Library("ckpt_observe.core", "ckpt_observe.instrument.reference:ReferenceInstrumentor", "ckpt_observe.core"),
    "langgraph": Library("LangGraph", "ckpt_observe.instrument.langgraph:LangGraphInstrumentor", "langgraph.checkpoint.base"),
    "openai-agents": Library("OpenAI Agents SDK", f"{_SESSIONS}:OpenAIAgentsInstrumentor", "agents.memory.session"),
    "google-adk": Library("Google ADK", f"{_SESSIONS}:GoogleADKInstrumentor", "google.adk.sessions.base_session_service"),
    "agent-framework": Library("Agent Framework", f"{_SESSIONS}:AgentFrameworkInstrumentor", "agent_framework._workflows._checkpoint"),
    "crewai": Library("CrewAI", "ckpt_observe.instrument.crewai:CrewAIInstrumentor", "crewai"),
    "dbos": Library("DBOS", "ckpt_observe.instrument.dbos:DBOSInstrumentor", "dbos"),
    "joblib": Library("joblib", "ckpt_observe.instrument.object_files:JoblibInstrumentor", "joblib", default=False),
}
# fmt: on

DEFAULT: Final = "default"


def names() -> list[str]:
    """Return the names of all instrumentors. A bundled one takes precedence over an entry point of the same name."""
    return list(dict.fromkeys((*LIBRARIES, *entry_points.names(ENTRY_POINT_GROUP))))


def select(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the instrumentors that a setting such as `default,+joblib,-langgraph` selects.

    A list of plain names selects just these. `+` adds to the selection so far and `-` removes from it; the selection starts with the
    default if the first name has a sign. Raise ConfigError for an unknown name.
    """
    available = names()
    default = [name for name in available if name not in LIBRARIES or LIBRARIES[name].default]
    tokens = parse_names(value)
    if tokens == ("none",):
        return ()
    selection = dict.fromkeys(default if not tokens or tokens[0][0] in "+-" else ())
    for token in tokens:
        sign, name = (token[0], token[1:]) if token[0] in "+-" else ("+", token)
        parse_choice(environment.LIBRARIES, name, (*available, DEFAULT, "none"))
        for each in default if name == DEFAULT else (name,):
            if sign == "+":
                selection[each] = None
            else:
                selection.pop(each, None)
    return tuple(selection)
