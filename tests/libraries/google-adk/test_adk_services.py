"""Session services of Google's ADK. What they stored is the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from paired_run import PairedRun

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

KINDS = ["memory", "sqlite", "database", "subclass", "delegation"]
SECRET = "what the user said"
EXAMPLE = Path(__file__).parents[3] / "examples" / "libraries" / "google_adk_session.py"


class Run(PairedRun):
    """The services of all kinds."""

    def operations(self, kind, operation):
        return [span.attributes for span in self.operations_of(names.SESSION_ID, f"{kind}-", operation)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("services"), Path(__file__).with_name("services.py"))


def appended_events(run, kind):
    return sorted([attributes[names.ID], attributes[names.SESSION_ID]] for attributes in run.operations(kind, "append"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_stored_event_is_one_operation(run, kind):
    """Stored events are the appends, one to one, by id and session; sessions are the saves. Partial events are neither."""
    stored = run.output[kind]["stored"]
    assert appended_events(run, kind) == [[event, session] for event, session, _size in stored["events"]]
    assert sorted(attributes[names.TASK_ID] for attributes in run.operations(kind, "save")) == stored["sessions"]
    loads = run.operations(kind, "load")
    assert [attributes.get(names.COUNT) for attributes in loads[:-1]] == [result[0] for result in run.output[kind]["results"][:-2]]
    assert loads[-1][names.EXISTS] is False
    deletes = run.operations(kind, "delete")
    assert [(attributes[names.TASK_ID], attributes[names.WHOLE_TASK]) for attributes in deletes] == [(f"{kind}-0", True)]


def test_missing_event_is_noticed(run):
    """Control: the comparison fails without one of the stored events."""
    stored = [[event, session] for event, session, _size in run.output["sqlite"]["stored"]["events"]]
    assert appended_events(run, "sqlite") != stored[1:]


def test_names_of_the_operations(run):
    """App, user, run and author are attributes; every trace has one operation, of this library."""
    run.spans.check_traces()
    operations = run.spans.operations(system="google_adk")
    assert len(operations) == len(run.spans.operations())
    assert {(span.attributes[names.TASK_NAME], span.attributes[names.USER_ID]) for span in operations} == {("app", "user")}
    assert {span.attributes[names.NODE] for span in run.spans.operations("append")} == {"user", "agent"}
    assert all(span.attributes[names.RUN_ID].startswith("run-") for span in run.spans.operations("append"))
    stores = {span.attributes[names.SAVER]: span.attributes[names.STORE] for span in operations}
    assert stores["DatabaseSessionService"] == stores["SqliteSessionService"] == "sqlite"
    assert stores["InMemorySessionService"] == "memory"


def test_size_is_what_was_stored(run):
    """DatabaseSessionService: an append without a change of state has the size of its event; others are larger by the state."""
    sizes = {event: size for event, _session, size in run.output["database"]["stored"]["events"]}
    differences = [
        attributes["checkpoint.size.serialized"] - sizes[attributes[names.ID]] for attributes in run.operations("database", "append")
    ]
    assert 0 in differences
    assert min(differences) == 0


def test_phases(run):
    """What a service waits for is visible."""
    phases = {}
    for span in run.spans.operations("append"):
        phases.setdefault(span.attributes[names.SAVER], set()).add(frozenset(run.spans.phase_names(span)))
    assert phases["SqliteSessionService"] == {frozenset({"write", "commit"})}
    assert all({"wait", "write", "commit", "serialize"} <= each for each in phases["DatabaseSessionService"])
    assert phases["InMemorySessionService"] == {frozenset()}


def test_results_are_those_of_a_bare_run(run):
    """The program gets and stores what it does without us, except for times in the events."""
    for kind in KINDS:
        assert run.output[kind]["results"] == run.bare_output[kind]["results"]
        for output in (run.output, run.bare_output):
            output[kind]["names"] = [event[:2] for event in output[kind]["stored"]["events"]], output[kind]["stored"]["sessions"]
        assert run.output[kind]["names"] == run.bare_output[kind]["names"]


def test_content_is_not_recorded(run):
    """Nothing that we write contains what was said. Control: the database does."""
    run.check_content(SECRET, run.directory / "sqlite.db")


def test_example(observation):
    """A session is created, and two runs load it and append four events."""
    observation.run_example(EXAMPLE)
    spans = observation.spans()
    assert [len(spans.operations(operation)) for operation in ("save", "load", "append")] == [1, 2, 4]
    assert {span.attributes[names.TASK_NAME] for span in spans.operations()} == {"counter"}
