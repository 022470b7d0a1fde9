"""Ranks: what the launchers of distributed programs tell a process is on its operations and tasks, and not in the metrics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import ckpt_observe
from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.journal.spool import join_lines
from ckpt_observe.record.ranks import read_ranks
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.launchers import LAUNCHERS, RANK_ATTRIBUTES
from ckpt_observe.semconv.metrics import METRICS


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.rank)
def test_each_launcher(launcher):
    """Every variable of a launcher becomes its attribute; a variable that the launcher does not have is left out."""
    numbers = dict(zip(RANK_ATTRIBUTES, (3, 8, 1, 2), strict=True))
    variables = dict(zip(RANK_ATTRIBUTES, launcher.variables, strict=True))
    environ = {variable: str(numbers[name]) for name, variable in variables.items() if variable}
    assert read_ranks(environ) == {name: number for name, number in numbers.items() if variables[name]}


def test_innermost_launcher_counts():
    """Under `srun torchrun`, the rank is that of torchrun, because Slurm only knows the process on each machine."""
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1"}
    assert read_ranks({**slurm, "RANK": "9", "WORLD_SIZE": "16"}) == {names.RANK: 9, names.WORLD_SIZE: 16}
    assert read_ranks(slurm)[names.RANK] == 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "zero", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "7" * 5000},
        {"RANK": "²", "WORLD_SIZE": "9"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
    ],
)
def test_not_a_rank(environ):
    """Incomplete and impossible values are ignored, and so is a batch script of Slurm, which is a single process."""
    assert read_ranks(environ) == {}


def test_operation_has_precedence(recording):
    """A library that knows the rank itself overrides the variables. Phases have no rank, because their operation has it."""
    with ckpt_observe.task("t"), ckpt_observe.checkpoint("save", attributes={names.RANK: 1}) as operation, operation.phase("write"):
        pass
    spans = [span for page in recording.pages for span in assemble(join_lines(b"".join(page.lines)), {}, {names.RANK: 0})]
    assert {span.name: span.attributes.get(names.RANK) for span in spans} == {"task t": 0, "checkpoint.save": 1, "checkpoint.write": None}


def test_ranks_of_a_process(state, tmp_path, monkeypatch, stored_spans):
    """Variables that the program sets itself, before its first operation, are on its operations and not in its resource."""
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    try:
        for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
            monkeypatch.setenv(name, value)
        with ckpt_observe.checkpoint("save"):
            pass
        assert watch.flush(60)
    finally:
        watch.close(10)
    [span] = stored_spans()
    assert {name: span.attributes.get(name) for name in RANK_ATTRIBUTES} == dict(zip(RANK_ATTRIBUTES, (1, 2, 0, None), strict=True))
    assert not set(RANK_ATTRIBUTES) & set(span.resource)


def test_rank_is_no_label():
    """No metric has the rank as a label: a job with a thousand ranks would have a thousand times as many series."""
    assert not {"rank", "local_rank", "node_rank", "world_size"} & {label for metric in METRICS for label in metric.labels}


def test_rank_of_a_dead_process(state, tmp_path, stored_spans):
    """The save of a rank that was killed is reported as interrupted, with its rank, by another process."""
    program = "import os, ckpt_observe, ckpt_observe.auto\nwith ckpt_observe.checkpoint('save'):\n    os.kill(os.getpid(), 9)"
    directories = {"CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"), "CKPT_OBSERVE_EXPORTERS": "local"}
    environ = {**os.environ, **directories, "RANK": "1", "WORLD_SIZE": "2"}
    assert subprocess.run([sys.executable, "-c", program], env=environ, check=False).returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-m", "ckpt_observe", "traces"], env={**os.environ, **directories}, check=True, capture_output=True)
    [span] = stored_spans()
    assert (span.attributes[names.OUTCOME], span.attributes[names.RANK]) == ("interrupted", 1)
