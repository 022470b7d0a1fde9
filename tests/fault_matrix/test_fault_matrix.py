"""Every fault of the table is injected for real, and the recorded operation says what the table says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpt_observe.instrument.reference import ReferenceInstrumentor
from tests.fault_matrix import injections
from tests.fault_matrix.killed import kill
from tests.fault_matrix.page import render
from tests.fault_matrix.place import Place
from tests.fault_matrix.rig import Result, act, find_mismatches
from tests.fault_matrix.table import ACTIONS, CONTROL, INJECTIONS, ROWS, SERVERS, STORES, cells
from tests.faults.power import why_no_mounts

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
MOUNTS = ("full_disk", "read_only_disk")
NEEDING_MOUNTS = (*MOUNTS, "full_tablespace", "full_append_log", "full_bucket", "failing_bucket", "other_user")
PROCESSES = ("other_user", "io_error", "quota_error", "timeout_error", "stuck_git")
MEMORY = ("little_memory",)
KILLS = ("killed", "killed_in_write")
ANYWHERE = tuple(name for name in INJECTIONS if name not in (*MOUNTS, *PROCESSES, *MEMORY, *KILLS))

need_mounts = pytest.mark.skipif(why_no_mounts() is not None, reason=why_no_mounts() or "")
need_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")


def of(*names, servers=None):
    parameters = [
        pytest.param(cell, id=cell.name, marks=need_mounts if cell.injection in NEEDING_MOUNTS else ())
        for cell in cells(*names, servers=servers)
    ]
    return pytest.mark.parametrize("cell", parameters)


def find_injection(cell):
    """Return the function that injects a fault. Those of servers are imported when they are needed, with their client libraries."""
    if cell.store in SERVERS:
        from tests.fault_matrix import server_injections  # noqa: PLC0415

        if hasattr(server_injections, cell.injection):
            return getattr(server_injections, cell.injection)
    return getattr(injections, cell.injection)


@pytest.fixture
def check(recording, tmp_path, request, monkeypatch):
    """A function that injects the fault of a cell, and returns the mismatches."""
    instrumentor = ReferenceInstrumentor()
    places = []

    def check(cell):
        servers = request.getfixturevalue("servers") if cell.store in SERVERS else None
        place = Place(cell.store, cell.action, tmp_path, servers, monkeypatch)
        places.append(place)
        with find_injection(cell)(place) as trouble:

            def observe():
                recording.pages.clear()
                instrumentor.instrument()
                raised = None
                try:
                    act(cell.action, trouble.checkpointer, place.task, trouble.state)
                except BaseException as error:
                    raised = error
                finally:
                    instrumentor.uninstrument()
                return Result(raised, recording.spans())

            result = trouble.run(observe)
        return find_mismatches(cell, *result)

    yield check
    for place in places:
        place.close()


@of(*ANYWHERE, servers=False)
def test_cell(cell, check):
    """The diagnosis of this fault is correct."""
    assert not (mismatches := check(cell)), "\n".join(mismatches)


@pytest.mark.faults
@of(*MOUNTS, servers=False)
def test_cell_on_a_file_system(cell, check):
    """The diagnosis of this fault is correct, on a file system of its own."""
    assert not (mismatches := check(cell)), "\n".join(mismatches)


@need_strace
@pytest.mark.faults
@of(*PROCESSES, *MEMORY, servers=False)
def test_cell_in_a_process(cell, check):
    """The diagnosis of this fault is correct, with another user, an error at a system call or little memory."""
    assert not (mismatches := check(cell)), "\n".join(mismatches)


@pytest.mark.services
@of(*(name for name in INJECTIONS if name not in KILLS), servers=True)
def test_cell_on_a_server(cell, check):
    """The diagnosis of this fault is correct, with a real server."""
    assert not (mismatches := check(cell)), "\n".join(mismatches)


@pytest.fixture
def check_killed(tmp_path, request, monkeypatch):
    """Like `check`, for actions whose process is killed."""

    def check(cell):
        servers = request.getfixturevalue("servers") if cell.store in SERVERS else None
        place = Place(cell.store, cell.action, tmp_path, servers, monkeypatch)
        return find_mismatches(cell, None, kill(cell, place, tmp_path / "observed"))

    return check


@need_strace
@pytest.mark.faults
@of(*KILLS, servers=False)
def test_killed(cell, check_killed):
    """The operation that was killed is recorded with its phase."""
    assert not (mismatches := check_killed(cell)), "\n".join(mismatches)


@pytest.mark.services
@of(*KILLS, servers=True)
def test_killed_with_a_server(cell, check_killed):
    """The operation that was killed is recorded with its phase, with a real server."""
    assert not (mismatches := check_killed(cell)), "\n".join(mismatches)


def test_control(check):
    """Control: a row that expects the wrong code and phase is reported."""
    assert {mismatch.split()[0] for mismatch in check(CONTROL)} >= {"checkpoint.error.code", "checkpoint.error.phase", "the"}


def test_table_is_complete():
    """The table has every fault for which an injection exists, every store and action, and no unknown code."""
    table = list(cells())
    assert len({cell.name for cell in table}) == len(table) >= 150
    assert {row.injection for row in ROWS} == INJECTIONS.keys()
    assert ({cell.store for cell in table}, {cell.action for cell in table}) == (set(STORES), set(ACTIONS))
    assert not [cell for cell in table if cell.code.startswith("unknown")]


def test_page_is_current():
    """The page is what `python -m tests.fault_matrix` prints."""
    assert PAGE.read_text() == render()
