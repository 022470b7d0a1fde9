"""The agent of docs/langgraph.md leaves the traces that the page describes."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
ROOT = Path(__file__).parents[3]
AGENT = ROOT / "examples" / "libraries" / "langgraph_agent.py"


@pytest.fixture
def agent(observation):
    """Runs the agent with a command and returns the spans of all runs so far."""

    def run(command, status=0):
        process = observation._run([sys.executable, "-m", "ckpt_observe", "run", "--", sys.executable, str(AGENT), command])
        assert process.returncode == status, process.stderr
        return observation.spans()

    return run


def test_second_process_goes_on(agent):
    """The first run pauses, and the second loads the checkpoint that the first saved last. `documents` makes it large."""
    spans = agent("ask")
    spans.check_traces()
    [task] = spans.tasks()
    assert (task.name, task.attributes[names.STATUS], task.attributes[names.OUTCOME]) == ("task reporter", "paused", "ok")
    assert spans.operation("append", reason="interrupt").attributes[names.NODE] == "approve"
    last = max(spans.operations("save"), key=lambda span: span.attributes[names.STEP])
    sizes = dict(zip(last.attributes[names.KEY_NAMES], last.attributes[names.KEY_SIZES], strict=True))
    assert sizes["documents"] > 0.9 * last.attributes[names.SIZE_SERIALIZED]
    assert spans.operation("append", node="search").attributes[names.FORMAT] == "msgpack"
    spans = agent("answer")
    load = spans.operation("load", step=1)
    assert [(link.trace_id, link.span_id) for link in load.links] == [(last.trace_id, last.span_id)]


def test_what_it_prints(observation):
    """`ask` prints the question, also if the thread has a report already."""
    runs = [observation._run([sys.executable, str(AGENT), command]) for command in ("ask", "answer", "ask")]
    assert [run.stdout for run in runs] == ["Write the report?\n", "3 documents on otters\n", "Write the report?\n"]


def test_kill_in_commit(agent):
    """Exactly one operation died in commit; those after it died while they waited for it."""
    spans = agent("crash", status=-signal.SIGKILL)
    phases = [span.attributes[names.ERROR_PHASE] for span in spans.operations(outcome="interrupted")]
    assert phases.count("commit") == 1
    assert set(phases) <= {"commit", "wait", "serialize"}
    assert [task.attributes[names.OUTCOME] for task in spans.tasks()] == ["interrupted"]


def test_locked_database(agent):
    """Writes fail in the phase that waited for the lock of the database; a retry may help."""
    failures = agent("lock", status=1).operations(outcome="error")
    assert failures
    for span in failures:
        assert (span.attributes[names.ERROR_CODE], span.attributes[names.ERROR_PHASE]) == ("conflict.locked", "write")
        assert span.attributes[names.ERROR_RETRYABLE]


def test_value_that_cannot_be_saved(agent):
    """The failed operations name the value in the state."""
    failures = agent("broken", status=1).operations(outcome="error")
    assert {span.attributes[names.ERROR_CODE] for span in failures} == {"serialization.unsupported_type"}
    assert {span.attributes[names.ERROR_PATH] for span in failures} == {"documents[2].cache"}


def test_commands_of_the_page():
    """The page shows every command of the program, and the program has every command of the page."""
    page = (ROOT / "docs" / "langgraph.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(\w+)   +\w", AGENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 5
    assert set(re.findall(r"python agent\.py (\w+)", page)) == set(commands)
