"""Two real ranks with gloo: one trace, the bytes of each rank, the slow one named, errors and deaths on the right one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from observation import LAUNCHER

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
STRAGGLER = (names.STRAGGLER_RANK, names.STRAGGLER_PHASE, names.STRAGGLER_DELAY)


def run_ranks(observation, directory, special_rank=None, phase="-", event="-"):
    """Run both ranks. What happens in a phase happens to the special rank only."""

    def run(rank):
        arguments = (phase, event) if rank == special_rank else ("-", "-")
        status = -signal.SIGKILL if rank == special_rank and event == "kill" else 0
        return observation.run("rank.py", rank, directory, *arguments, event, status=status)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def saves_by_rank(spans):
    saves = spans.operations("save")
    assert sorted(span.attributes[names.RANK] for span in saves) == [0, 1]
    return sorted(saves, key=lambda span: span.attributes[names.RANK])


def check_one_trace(spans):
    """The save of rank 1 is below that of the coordinator, and so is its load. Every trace has one root."""
    for operation in ("save", "load"):
        coordinator, other = sorted(spans.operations(operation), key=lambda span: span.attributes[names.RANK])
        assert (other.trace_id, other.parent_span_id) == (coordinator.trace_id, coordinator.span_id)
        assert coordinator.parent_span_id == ""


def test_slow_rank_is_named(observation, tmp_path, seed):
    """Rank and phase are drawn: both are named on the coordinator's save with the delay, and bytes per rank are those of the files."""
    chance = random.Random(seed)
    rank, phase = chance.randrange(2), chance.choice(["plan", "write"])
    assert run_ranks(observation, tmp_path, rank, phase, "delay") == [[], []]
    spans = observation.spans()
    coordinator, other = saves_by_rank(spans)
    assert (coordinator.attributes[names.STRAGGLER_RANK], coordinator.attributes[names.STRAGGLER_PHASE]) == (rank, phase)
    assert coordinator.attributes[names.STRAGGLER_DELAY] > 1
    assert not set(STRAGGLER) & other.attributes.keys()
    sizes = [sum(file.stat().st_size for file in tmp_path.glob(f"step-100/__{number}_*.distcp")) for number in range(2)]
    assert list(coordinator.attributes[names.RANK_SIZES]) == sizes
    assert [span.attributes[names.SIZE_STORED] for span in (coordinator, other)] == sizes
    assert {"plan", "write", "wait"} <= spans.phase_names(other)
    assert "commit" in spans.phase_names(coordinator)
    check_one_trace(spans)


def test_equal_ranks(observation, tmp_path):
    """Control: if no rank is slow, none is named."""
    assert run_ranks(observation, tmp_path) == [[], []]
    spans = observation.spans()
    assert not [span for span in spans.operations("save") if set(STRAGGLER) & span.attributes.keys()]
    assert {span.attributes[names.STEP] for span in spans.operations()} == {100}
    check_one_trace(spans)


def test_failing_rank(observation, tmp_path, seed):
    """Every rank gets the exception, and the saves of all name the rank that failed, its phase and its error."""
    rank = random.Random(seed).randrange(2)
    assert run_ranks(observation, tmp_path, rank, "write", "fail") == [[rank], [rank]]
    for span in saves_by_rank(observation.spans()):
        attributes = span.attributes
        assert list(attributes[names.ERROR_RANKS]) == [rank]
        assert list(attributes[names.ERROR_RANK_TYPES]) == ["OSError"]
        assert (attributes[names.ERROR_CODE], attributes[names.ERROR_PHASE]) == ("storage.no_space", "write")


def test_killed_rank(observation, tmp_path, seed):
    """A rank that is killed while it writes is interrupted in `write`, in the trace of the checkpoint."""
    rank = random.Random(seed).randrange(2)
    run_ranks(observation, tmp_path, rank, "write", "kill")
    saves = saves_by_rank(observation.spans())
    victim = saves[rank]
    assert (victim.attributes[names.OUTCOME], victim.attributes[names.ERROR_PHASE]) == ("interrupted", "write")
    assert {span.trace_id for span in saves} == {victim.trace_id}
    assert saves[1 - rank].attributes[names.OUTCOME] != "ok"


def test_unobserved_coordinator(observation, tmp_path):
    """If only one of two ranks is observed, both work as usual: nothing waits for the other one."""
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda rank: observation.run("rank.py", rank, tmp_path, "-", "-", "-", observed=rank == 1), range(2))
        assert list(results) == [[], []]
    [save] = observation.spans().operations("save")
    assert (save.attributes[names.RANK], save.attributes[names.OUTCOME]) == (1, "ok")


def run_on_small_file_system(observation, tmp_path, program):
    """Run a program with a directory in which there are 4 MiB, and return what it printed."""
    available = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    assert available.returncode == 0, "needs user namespaces to mount a small tmpfs"
    (tmp_path / "small").mkdir()
    command = [sys.executable, "-c", LAUNCHER, "observed", str(observation.programs / program), str(tmp_path / "small")]
    script = f'mount -t tmpfs -o size=4m none {tmp_path}/small && exec "$@"'
    process = observation._run(["unshare", "-Urm", "sh", "-c", script, "sh", *command])
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_full_file_system(observation, tmp_path):
    """`async_save` returned each time; the error is on the save of the step that did not fit, and not on the next one."""
    assert run_on_small_file_system(observation, tmp_path, "full_disk.py") == [1, 2, 3, "RuntimeError"]
    first, second, third, file = sorted(observation.spans().operations("save"), key=lambda span: span.start_unix_nano)
    assert (first.attributes[names.OUTCOME], third.attributes[names.OUTCOME]) == ("ok", "ok")
    assert (second.attributes[names.STEP], second.attributes[names.ERROR_CODE]) == (2, "storage.no_space")
    assert second.attributes[names.ERROR_PHASE] == "write"
    assert names.ASYNC_BLOCKED in second.attributes
    assert (file.attributes[names.SYSTEM], file.attributes[names.ERROR_CODE]) == ("torch", "storage.no_space")


def test_full_file_system_with_orbax(observation, tmp_path):
    """The same for Orbax: the save of step 2 returned, and its late error is on it. Steps 1 and 3 are saved."""
    assert run_on_small_file_system(observation, tmp_path, "full_disk_orbax.py") == [True, True, True]
    first, second, third = sorted(observation.spans().operations("save"), key=lambda span: span.start_unix_nano)
    assert (first.attributes[names.OUTCOME], third.attributes[names.OUTCOME]) == ("ok", "ok")
    assert [span.attributes[names.STEP] for span in (first, second, third)] == [1, 2, 3]
    assert (second.attributes[names.ERROR_CODE], second.attributes[names.ERROR_PHASE]) == ("storage.no_space", "write")
    assert names.ASYNC_BLOCKED in second.attributes
    assert names.ASYNC_DURABLE not in second.attributes
