"""Sessions of the OpenAI Agents SDK. What SQLite stored is the oracle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from paired_run import PairedRun

sys.path.insert(0, str(Path(__file__).parent))
from message_log import check_log, read_log
from sessions import KINDS, SECRET

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

PHASES = {
    "sqlite": {"wait", "write", "serialize"},
    "async": {"wait", "write", "commit", "serialize"},
    "sqlalchemy": {"write", "commit", "serialize"},
    "encrypted": {"encrypt", "wait", "write", "serialize"},
}


class Run(PairedRun):
    """The sessions of all kinds."""

    def operations(self, kind, *operations):
        """The operations of a kind of session, without the first two of each session: they create the tables."""
        return self.operations_of(names.SESSION_ID, f"{kind} ", *operations)[0 if operations else 6 :]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("sessions"), Path(__file__).with_name("sessions.py"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_stored_item_is_in_one_operation(run, kind):
    """Rows that SQLite inserted and deleted are those of the operations, in order, with their sizes."""
    operations = run.operations(kind)
    check_log(read_log(run.directory / f"{kind}.db"), operations)
    assert {span.attributes[names.OUTCOME] for span in operations} == {"ok"}
    loads = [span.attributes[names.COUNT] for span in run.operations(kind, "load")]
    assert loads == [len(result) for result in run.output[kind] if isinstance(result, list)]


def test_one_trace_per_operation(run):
    """No operation is within another, and all are those of this library."""
    run.spans.check_traces()
    assert len(run.spans.operations(system="openai_agents")) == len(run.spans.operations())
    assert {span.attributes[names.SAVER] for span in run.operations("delegation")} == {"LoggingSession"}


def test_results_are_those_of_a_bare_run(run):
    """The program gets what it gets without us."""
    assert run.output == run.bare_output


def test_missing_row_is_noticed(run):
    """Control: a row that no operation accounts for, or one too few, fails the comparison."""
    rows, operations = read_log(run.directory / "sqlite.db"), run.operations("sqlite")
    for changed in (rows[:-1], [*rows, rows[0]], rows[1:], [*rows[:1], *rows[2:]]):
        with pytest.raises(AssertionError):
            check_log(changed, operations)


@pytest.mark.parametrize("kind", PHASES)
def test_phases(run, kind):
    """An append has the phases of its session, and the store is SQLite, also beneath an encrypted session."""
    appends = run.operations(kind, "append")
    assert {frozenset(run.spans.phase_names(span)) for span in appends} == {frozenset(PHASES[kind])}
    assert {span.attributes[names.STORE] for span in appends} == {"sqlite"}


def test_content_is_not_recorded(run):
    """Nothing that we write contains what was said. Control: the database does."""
    run.check_content(SECRET, run.directory / "sqlite.db")
