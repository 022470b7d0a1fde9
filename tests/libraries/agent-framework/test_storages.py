"""Checkpoint storages of Microsoft's Agent Framework. What they stored is the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from paired_run import PairedRun

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

SAVERS = {
    "memory": "InMemoryCheckpointStorage",
    "file": "FileCheckpointStorage",
    "subclass": "LocalStorage",
    "duck": "DuckStorage",
    "runtime": "DuckStorage",
    "functional": "DuckStorage",
}
SECRET = "what the user said"
EXAMPLE = Path(__file__).parents[3] / "examples" / "libraries" / "agent_framework_workflow.py"


class Run(PairedRun):
    """Workflows with storages of all kinds."""

    def operations(self, kind, operation):
        """Attributes of the operations of a workflow."""
        return [span.attributes for span in self.operations_of(names.TASK_NAME, kind, operation)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("storages"), Path(__file__).with_name("storages.py"))


def saved_checkpoints(run, kind):
    """Id, previous id, iteration and size of each save."""
    keys = names.ID, names.PARENT_ID, names.STEP, names.SIZE_SERIALIZED
    return sorted([attributes.get(key) for key in keys] for attributes in run.operations(kind, "save"))


@pytest.mark.parametrize("kind", SAVERS)
def test_every_stored_checkpoint_is_one_save(run, kind):
    """Stored checkpoints are the saves, one to one, by id, previous id, iteration and size; the storage is the one of the program.

    The size is known of storages that have a directory.
    """
    stored = sorted([*row, size if kind in ("file", "subclass") else None] for *row, size in run.output[kind]["stored"])
    assert saved_checkpoints(run, kind) == stored
    assert {attributes[names.SAVER] for attributes in run.operations(kind, "save")} == {SAVERS[kind]}


def test_missing_checkpoint_is_noticed(run):
    """Control: the comparison fails without one of the stored checkpoints."""
    assert saved_checkpoints(run, "file") != sorted(run.output["file"]["stored"])[1:]


@pytest.mark.parametrize("kind", SAVERS)
def test_resume_is_linked_to_its_save(run, kind):
    """The load of a resumed workflow has the checkpoint's id, and the span of the save that wrote it."""
    resumed = run.output[kind]["resumed"]
    loads = [attributes for attributes in run.operations(kind, "load") if attributes[names.ID] == resumed]
    [save] = [span for span in run.spans.operations("save") if span.attributes[names.ID] == resumed]
    assert {attributes[names.SOURCE_SPAN] for attributes in loads} == {save.span_id}


def test_one_trace_per_operation(run):
    """No operation is within another: a list to find the latest checkpoint is part of the load."""
    run.spans.check_traces()
    assert len(run.spans.operations(system="agent_framework")) == len(run.spans.operations())
    deleted = [span.attributes[names.COUNT] for span in sorted(run.spans.operations("delete"), key=lambda span: span.start_unix_nano)]
    assert deleted == [int(existed) for kind in SAVERS for existed in run.output[kind]["deleted"]] == [1, 0] * len(SAVERS)


def test_phases(run):
    """A save to a file encodes the checkpoint and checks that it can be decoded."""
    saves = [span for span in run.spans.operations("save") if span.attributes[names.TASK_NAME] == "file"]
    assert {frozenset(run.spans.phase_names(span)) for span in saves} == {frozenset({"serialize", "validate"})}


def test_results_are_those_of_a_bare_run(run):
    """The program gets what it gets without us. Ids of checkpoints are random."""
    for kind in SAVERS:
        for key in ("outputs", "deleted"):
            assert run.output[kind][key] == run.bare_output[kind][key]
        assert len(run.output[kind]["stored"]) == len(run.bare_output[kind]["stored"])


def test_content_is_not_recorded(run):
    """Nothing that we write contains the state. Control: the checkpoints do."""
    run.check_content(SECRET, *(run.directory / "file").iterdir())


def test_example(observation):
    """A workflow saves three checkpoints, and another one loads the first of them and saves two more."""
    observation.run_example(EXAMPLE)
    spans = observation.spans()
    assert [len(spans.operations(operation)) for operation in ("save", "list", "load")] == [5, 1, 1]
    assert {span.attributes[names.TASK_NAME] for span in spans.operations()} == {"shouting"}
