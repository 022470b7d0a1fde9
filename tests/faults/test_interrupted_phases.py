"""Programs that die anywhere within an operation of the core: each interrupted operation names the phase in which it died.

One test stops at every line that is executed within an operation and reads the pages, which is all that survives. The other kills real
processes at random moments.
"""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import pytest

import ckpt_observe
from ckpt_observe.core import Checkpointer, steps
from ckpt_observe.instrument import reference
from ckpt_observe.journal import recovery
from ckpt_observe.journal.page_reader import begin_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans
from tests.faults.saver import STATE

pytestmark = pytest.mark.faults
KILLS = 12
STORES = ["file://{}/store", "sqlite://{}/store.db"]
PHASES = {
    "save": {"serialize", "digest", "write", "validate", "retain"},
    "prune": {"remove"},
    "load": {"read", "validate", "deserialize"},
}
"""Phases of each operation of the test. A save prunes within `retain`."""


class Death(NamedTuple):
    """What the next process would report about an operation, if this one died at a line."""

    line: str
    operation: str
    phase: str | None
    message: str
    step_phase: str | None
    """The phase of the innermost step of the core that is executed, which may belong to another operation; None if there is none."""


class EveryLine:
    """Within its block, reads the pages at every line that this thread executes, and notes what they say about running operations."""

    def __init__(self, pages: Path) -> None:
        self._pages = pages
        self._step_phases = step_phases()
        self.deaths: list[Death] = []

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        heartbeat, operations = recovery.read_operations([str(path) for path in self._pages.rglob("*.pages")])
        for operation in operations.values():
            begin = begin_line(operation.lines)
            if begin is not None and all(line[0] != events.END for line in operation.lines):
                *_, exception, end = operation.finish(heartbeat, 1)
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                message = exception[4][spans.EXCEPTION_MESSAGE]
                self.deaths.append(Death(line, begin[4], end[3].get(names.ERROR_PHASE), message, self._running_step(frame)))
        return self._trace

    def _running_step(self, frame: FrameType | None) -> str | None:
        while frame is not None:
            if frame.f_code in self._step_phases:
                return self._step_phases[frame.f_code]
            frame = frame.f_back
        return None


def step_phases() -> dict[CodeType, str]:
    """Return the phase of each function of `core.steps`."""
    targets = [target for target in reference.TARGETS if target.module == steps.__name__]
    return {inspect.unwrap(getattr(steps, target.path)).__code__: target.why.split("`")[1] for target in targets}


@pytest.fixture
def watch(tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
    yield watch
    watch.close(10)


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("store", STORES)
def test_death_at_every_line_has_a_phase(tmp_path, store):
    """Wherever a save, its pruning or a load dies, it names its phase; while a step of the core runs, it is the phase of that step."""
    checkpointer = Checkpointer(store.format(tmp_path), keep_last=1)
    for step in range(3):  # the first ones start threads and import modules
        checkpointer.save("run-1", STATE, step=step)
        checkpointer.load("run-1")
    with EveryLine(tmp_path / "pages") as every_line:
        checkpointer.save("run-1", STATE, step=3)
        checkpointer.load("run-1")
    checkpointer.close()
    deaths = every_line.deaths
    assert [death for death in deaths if death.phase is None] == []
    assert {name: {death.phase for death in deaths if death.operation == name} for name in PHASES} == PHASES
    assert [death for death in deaths if death.step_phase in PHASES[death.operation] and death.phase != death.step_phase] == []
    progress = {death.message.rpartition(") ")[2] for death in deaths}
    assert {"before serialize", "after digest", "during write", "after retain", "before read"} <= progress


@pytest.mark.usefixtures("watch")
def test_death_outside_phases_is_detected(tmp_path):
    """Control: an operation of the program's own code has no phase between its phases, because that code may do anything there."""
    with EveryLine(tmp_path / "pages") as every_line, ckpt_observe.checkpoint("save") as operation:
        with operation.phase("write"):
            pass
        sum(range(3))
    assert {"before its first phase", "during write", "after write"} == {death.message.rpartition(") ")[2] for death in every_line.deaths}
    assert {death.phase for death in every_line.deaths} == {None, "write"}


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


@pytest.mark.parametrize("store", STORES)
def test_killed_operation_names_its_phase(tmp_path, interrupted, store):
    """A program that saves, loads and prunes is killed at random moments: every interrupted operation names its phase."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    delays = random.Random(seed)
    for _ in range(KILLS):
        kill_saver(tmp_path, delays.uniform(0, 0.2), store.format(tmp_path))
    operations = interrupted()
    assert operations
    assert [span.events[-1].attributes for span in operations if names.ERROR_PHASE not in span.attributes] == []


def test_save_that_is_killed_in_a_hook(tmp_path, interrupted):
    """A save that is killed in a hook of the program names that, and not a step of the core."""
    kill_saver(tmp_path, 0, f"file://{tmp_path}/store", "hook")
    [span] = interrupted()
    assert (span.attributes[names.OPERATION], span.attributes[names.ERROR_PHASE]) == ("save", "hook")
