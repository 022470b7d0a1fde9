"""Programs that are killed at random moments: every interrupted operation of the core names the phase in which it died."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.faults
KILLS = 24


def kill_saver(directory, delay, *arguments):
    """Run the saver, and kill it so many seconds after its first save."""
    command = [sys.executable, "-m", "tests.faults.saver", str(directory), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout.readline() == b"ready\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()


@pytest.fixture
def interrupted(tmp_path, stored_spans):
    """A function that adopts the journals of killed processes and returns their interrupted operations."""

    def read():
        watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
        try:
            with ckpt_observe.checkpoint("list"):
                pass
            assert watch.flush(timeout=60)
        finally:
            watch.close(10)
        operations = [span for span in stored_spans() if names.OPERATION in span.attributes]
        return [span for span in operations if span.attributes[names.OUTCOME] == "interrupted"]

    return read


@pytest.mark.parametrize("store", ["file://{}/store", "sqlite://{}/store.db"])
def test_killed_operation_names_its_phase(tmp_path, interrupted, store):
    """A program that saves, loads and prunes is killed at random moments: at least 99 % of the interrupted operations name their phase."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    delays = random.Random(seed)
    for _ in range(KILLS):
        kill_saver(tmp_path, delays.uniform(0, 0.2), store.format(tmp_path))
    spans = interrupted()
    assert len(spans) >= KILLS / 2
    without_phase = [span for span in spans if names.ERROR_PHASE not in span.attributes]
    assert len(without_phase) <= max(1, len(spans) // 100), [span.events[-1].attributes for span in without_phase]


def test_rig_detects_a_save_outside_phases(tmp_path, interrupted):
    """Control: a save that is killed in a hook of the program, which is in no phase, has none."""
    kill_saver(tmp_path, 0, f"file://{tmp_path}/store", "hook")
    [span] = interrupted()
    assert (span.attributes[names.OPERATION], span.attributes.get(names.ERROR_PHASE)) == ("save", None)
