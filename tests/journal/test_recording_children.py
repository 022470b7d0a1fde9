"""The count of child processes that record something, for the summary of `ckpt-observe run`."""

from __future__ import annotations

from ckpt_observe.journal import recording_children


def test_children_are_counted_once_for_each_program(state):
    """Each program has its own count. It starts from zero after it was read, because process IDs are used again."""
    state.mkdir(mode=0o700)
    for program_pid in (10, 10, 20):
        recording_children.add_child(state, program_pid)
    assert [recording_children.take_count(state, program_pid) for program_pid in (10, 20, 30)] == [2, 1, 0]
    assert recording_children.take_count(state, 10) == 0


def test_programs_that_were_killed_leave_few_files(state):
    """The newest files are kept."""
    state.mkdir(mode=0o700)
    for program_pid in range(50):
        recording_children.add_child(state, program_pid)
    assert len(list((state / recording_children.DIRECTORY).iterdir())) == recording_children._MAX_FILES
    assert recording_children.take_count(state, 49) == 1


def test_directory_that_cannot_be_used(state):
    """A child records although it cannot be counted."""
    state.write_text("a file")
    recording_children.add_child(state, 10)
    assert recording_children.take_count(state, 10) == 0
