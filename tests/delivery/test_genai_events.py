"""OpenTelemetry's draft events of an agent's life, on our spans."""

from __future__ import annotations

import pytest

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.delivery.genai_events import lifecycle
from ckpt_observe.semconv import attributes as names

ENDED = 7


@pytest.fixture
def on(monkeypatch):
    monkeypatch.setattr(lifecycle, "on", True)


def told(**attributes):
    given = {
        names.OUTCOME: "ok",
        names.TASK_ID: "run-1",
        names.ID: "c-1",
        **{getattr(names, key): value for key, value in attributes.items()},
    }
    return [(event.name, event.time_unix_nano, event.attributes) for event in lifecycle.events(given, ENDED)]


def test_save(on):
    """A save says what was saved, of which execution."""
    assert told(OPERATION="save") == [
        ("gen_ai.agent.checkpointed", ENDED, {"gen_ai.agent.execution.id": "run-1", "gen_ai.agent.checkpoint.id": "c-1"})
    ]


def test_pause(on):
    """The save of a run that its program calls paused says that, too."""
    assert [name for name, _, _ in told(OPERATION="save", STATUS="paused")] == ["gen_ai.agent.checkpointed", "gen_ai.agent.paused"]
    assert [name for name, _, _ in told(OPERATION="save", STATUS="running")] == ["gen_ai.agent.checkpointed"]


def test_restore(on):
    """A restore says which checkpoint the execution goes on from."""
    about = {"gen_ai.agent.execution.id": "run-1", "gen_ai.agent.resumed_from.type": "checkpoint", "gen_ai.agent.resumed_from.id": "c-1"}
    assert told(OPERATION="restore") == [("gen_ai.agent.resumed", ENDED, about)]


@pytest.mark.parametrize(
    "attributes", [{"OPERATION": "load"}, {"OPERATION": "save", "OUTCOME": "error"}, {"OPERATION": "restore", "OUTCOME": "interrupted"}, {}]
)
def test_nothing_else(on, attributes):
    """Neither what failed nor what is no step of a life: a load is not a resume."""
    assert told(**attributes) == []


@pytest.mark.parametrize("setting", ["true", "false"])
def test_switch(setting, monkeypatch, state, kept, tmp_path):
    """From the setting to the span in the store; without it the spans are as before."""
    monkeypatch.setattr(lifecycle, "on", False)
    monkeypatch.setenv("CKPT_OBSERVE_GENAI_EVENTS", setting)
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    checkpointer = Checkpointer(tmp_path / "ckpt")
    saved = checkpointer.save("run-1", {"a": 1}, status="paused")
    checkpointer.restore("run-1")
    watch.close(10)
    found = {event.name: event.attributes for span in kept() for event in span.events}
    if setting == "false":
        assert found == {}
    else:
        assert set(found) == {"gen_ai.agent.checkpointed", "gen_ai.agent.paused", "gen_ai.agent.resumed"}
        assert found["gen_ai.agent.resumed"]["gen_ai.agent.resumed_from.id"] == saved.id
