"""`traces`, `why`, `tail` and `top` while a program is running in another process. The program goes on when the test tells it to."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from ckpt_observe.cli.main import main
from ckpt_observe.cli.tail import event_line, events_of
from ckpt_observe.cli.top import TaskTable
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.query import RUNNING, Changes, open_traces
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.operations import SECOND, make_operation
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import ckpt_observe.auto, ckpt_observe
with ckpt_observe.task("trainer", id="run-1"):
    for step, _ in enumerate(iter(sys.stdin.readline, ""), 1):
        with ckpt_observe.checkpoint("save", id=f"ckpt-{step}", step=step) as operation, operation.phase("write"):
            print("writing", flush=True)
            sys.stdin.readline()
"""


class Program:
    """A program that saves in two steps: `begin` returns when it is in the phase write, `end` lets it finish the save."""

    def __init__(self, environ):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )

    def begin(self):
        self._send()
        assert self.process.stdout.readline() == "writing\n"

    def end(self):
        self._send()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _send(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def environ(tmp_path):
    return {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "CKPT_OBSERVE_DIR": str(tmp_path / "state"),
        "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
        "CKPT_OBSERVE_EXPORTERS": "local",
    }


@pytest.fixture
def program(environ):
    program = Program(environ)
    yield program
    program.close()


@pytest.fixture
def follow(environ):
    """Start a command that follows the program, and return it when it has printed its notice: then it follows.

    `top` has a notice only if there is nothing to show, so with a program it is started without waiting.
    """
    commands = []

    def start(*arguments, wait=True):
        command = [sys.executable, "-m", "ckpt_observe", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
        commands.append(process)
        assert not wait or process.stderr.readline().startswith("ckpt-observe: ")
        return process

    yield start
    for process in commands:
        process.kill()
        process.communicate()


def validate(command, line):
    value = json.loads(line)
    schema = json.loads((ROOT / f"docs/schemas/{command}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


def read_until(process, pattern):
    """Return the next line of standard output that matches."""
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"no line matches {pattern}: {process.stderr.read()}")


def test_a_run_with_all_its_steps_has_no_time_left(environ, tmp_path, capsys):
    """Its progress is complete, and not `0 µs left`."""
    code = """
import ckpt_observe.auto
with ckpt_observe.task("trainer", total_steps=20):
    for step in (10, 20):
        with ckpt_observe.checkpoint("save", step=step):
            pass
"""
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    assert main(["top", "--once", "--dir", str(tmp_path / "state")]) == 0
    assert re.search(r" 20 of 20  ", capsys.readouterr().out)


def test_running_operation_is_shown(program, tmp_path, capsys):
    """While a save is running, the list and `top` say for how long and in which phase, and `why` explains it."""
    program.begin()
    state = ["--dir", str(tmp_path / "state")]
    assert main(["traces", *state]) == 0
    listed = capsys.readouterr().out
    assert "RUNNING" in listed
    assert re.search(r"save [\d.]+ (µs|ms|s), in write  task trainer", listed)
    assert main(["top", "--once", *state]) == 0
    assert re.search(r"^trainer  save .*, in write +none recorded ", capsys.readouterr().out, re.MULTILINE)
    trace_id = listed.splitlines()[1][:12]
    assert main(["why", trace_id, *state]) == 0
    explanation = " ".join(capsys.readouterr().out.split())
    assert re.search(r"The save of step 1 of trainer \(run run-1\) has been running for .* and is now in write", explanation)
    assert main(["traces", trace_id, "--outcome", "running", *state]) == 0
    assert re.search(r"checkpoint.save .* running", capsys.readouterr().out)
    assert main(["timeline", *state]) == 0
    assert "> running" in capsys.readouterr().out


def test_tail_prints_starts_ends_and_deaths(follow, program):
    """A save appears when it starts and when it ends; a killed one as interrupted, though nothing else observes."""
    tail = follow("tail", "--operation", "save")
    program.begin()
    assert re.search(r"started +save +trainer +step 1 +[0-9a-f]{12}:[0-9a-f]{6}$", read_until(tail, "started"))
    program.end()
    assert re.search(r"ok +save +trainer +step 1 +[\d.]+ ", read_until(tail, "ok"))
    program.begin()
    read_until(tail, "started .* step 2")
    program.kill()
    assert re.search(r"interrupted +save +trainer +step 2 .*interrupted.process_died in write", read_until(tail, "interrupted"))


def test_tail_for_programs(follow, program):
    """`--json` prints each event as a line that its schema describes."""
    tail = follow("tail", "--json")
    program.begin()
    event = validate("tail", read_until(tail, '"name":"save"'))
    assert (event["event"], event["operation"]["outcome"], event["operation"]["end_unix_nano"]) == ("started", "running", None)
    program.end()
    event = validate("tail", read_until(tail, '"event":"finished"'))
    assert (event["operation"]["name"], event["operation"]["outcome"]) == ("save", "ok")


def test_tail_of_a_task_that_is_not_recorded_yet(follow, program):
    """It says that there is no such task, and follows: it may still come."""
    tail = follow("tail", "--task", "trainer")
    program.begin()
    assert " trainer " in read_until(tail, "started +save")


@pytest.mark.parametrize("arguments", [("tail",), ("top",)], ids=str)
def test_ctrl_c_is_clean(follow, arguments):
    """Ctrl-C ends a live command with its code, without a traceback."""
    process = follow(*arguments)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize("arguments", [("tail",), ("top", "--json")], ids=str)
def test_closed_pipe_ends_it(follow, arguments):
    """A live command ends when its reader has gone, even if nothing happens any more."""
    process = follow(*arguments)
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr.read() == ""


def test_top_follows(follow, program):
    """`top --json` shows the running save, and later its success."""
    top = follow("top", "--json", wait=False)
    program.begin()
    task = validate("top", read_until(top, '"operation":"save"'))
    assert (task["task"], task["running"][0]["phase"], task["last_success_age"]) == ("trainer", "write", None)
    program.end()
    task = validate("top", read_until(top, '"operations":1'))  # delivered; until then the save is neither running nor counted
    assert task["running"] == []
    assert task["last_success_age"] is not None


def test_top_on_a_terminal_is_redrawn(program, environ):
    """On a terminal the table is drawn again in place, without colours if NO_COLOR is set."""
    program.begin()
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "ckpt_observe", "top"]
    process = subprocess.Popen(
        command, stdout=terminal, stderr=subprocess.DEVNULL, env={**environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "160"}
    )
    os.close(terminal)
    screen = b""
    while screen.count(b"in write") < 2:
        screen += os.read(controller, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    os.close(controller)
    assert b"\x1b[1A" in screen, "the cursor moves up"
    assert b"\x1b[3" not in screen


# Without a process


def changes(finished=(), running=()):
    return Changes(cursor="", finished=tuple(finished), running=tuple(running))


def test_events():
    """An operation starts once, however often it is seen running; one that was never seen running only finishes."""
    save, load = make_operation(1, outcome=RUNNING), make_operation(2, "load", outcome=RUNNING)
    looks = [changes(running=[save]), changes(running=[save, load]), changes([make_operation(1), make_operation(3)], [load]), changes()]
    assert [[(event.event, event.operation.span_id[-1]) for event in events] for events in events_of(looks)] == [
        [("started", "1")],
        [("started", "2")],
        [("finished", "1"), ("finished", "3")],
        [],
    ]


def test_line_of_hostile_content():
    """Control characters in names cannot break the line of an event."""
    hostile = "\x1b[2J\n\u202e"
    operation = make_operation(name=hostile, task=hostile, outcome="error", attributes={names.STEP: hostile, names.ERROR_CODE: hostile})
    for events in events_of([changes([operation], [operation])]):
        for event in events:
            assert event_line(event).isprintable()


@pytest.fixture
def traces(tmp_path):
    with open_traces(tmp_path) as traces:
        yield traces


NOW = START_UNIX_NANO + 7200 * SECOND


def test_tasks_of_top(traces):
    """Rate, failures and last success count for an hour; a task that is busy comes first, with its longest operation."""
    table = TaskTable(traces)
    saves = [make_operation(number, start=5400 + 60 * number) for number in range(20)]
    failed = make_operation(30, start=6000, outcome="error", attributes={names.ERROR_CODE: "storage.io", names.ERROR_PHASE: "write"})
    old = make_operation(31, start=1, outcome="error")
    running = [make_operation(number, task="busy", start=start, outcome=RUNNING) for number, start in ((40, 7190), (41, 6960))]
    table.add(changes([*saves, failed, old], running))
    busy, agent = table.tasks(NOW)
    assert (busy.task, busy.running[0].seconds, busy.running[0].phase, len(busy.running), busy.last_success_age) == (
        "busy",
        240.0,
        "write",
        2,
        None,
    )
    assert (agent.task, agent.operations, agent.failures, agent.last_failure) == ("agent", 21, 1, "storage.io in write")
    assert agent.operations_per_minute == pytest.approx(21 / 30)
    assert agent.last_success_age == pytest.approx(659.9)


def make_run(number, **arguments):
    """Return a run whose trace is that of operation 1."""
    return msgspec.structs.replace(make_operation(number, "agent", **arguments), kind="task", trace_id=make_operation(1).trace_id)


def test_run_that_ended_between_two_operations_is_a_failure(traces):
    """A process that is killed between two saves, or a program that fails there, is a failure of its task."""
    table = TaskTable(traces)
    died = {names.ERROR_CODE: "interrupted.process_died"}
    table.add(changes([make_operation(1, start=7000), make_run(2, start=7010, outcome="interrupted", attributes=died)]))
    [task] = table.tasks(NOW)
    assert (task.operations, task.failures, task.last_failure) == (1, 1, "interrupted.process_died")
    assert table.tasks(NOW + 7200 * SECOND) == []


def test_run_that_failed_with_an_operation_is_one_failure(traces):
    """The failed operation is counted instead, because it says more. A run that succeeded or was cancelled is not a failure."""
    table = TaskTable(traces)
    failed = make_operation(1, start=7000, outcome="error", attributes={names.ERROR_CODE: "storage.io", names.ERROR_PHASE: "write"})
    table.add(changes([failed, make_run(2, start=7010, outcome="error"), make_run(3, outcome="ok"), make_run(4, outcome="cancelled")]))
    [task] = table.tasks(NOW)
    assert (task.operations, task.failures, task.last_failure) == (1, 1, "storage.io in write")


def test_last_success_may_be_older_than_an_hour(traces, tmp_path):
    """A task that only failed in the last hour still shows when it last succeeded, because that is what is at risk."""
    attributes = {names.OPERATION: "save", names.OUTCOME: "ok", names.TASK_NAME: "agent"}
    exporter = LocalExporter(tmp_path)
    exporter.send([make_span(1, "checkpoint.save", attributes=attributes)])
    exporter.close()
    table = TaskTable(traces)
    table.add(changes([make_operation(2, start=7000, outcome="error")]))
    [task] = table.tasks(NOW)
    assert task.last_success_age == pytest.approx(7200, abs=1)
    table.add(changes([make_operation(3, start=7100)]))
    assert table.tasks(NOW)[0].last_success_age == pytest.approx(99.9)


def test_drill_knows_the_last_good_save(traces):
    """A task that was only drilled has a good save, of the age that the drill found; a failed drill says nothing about saves."""
    table = TaskTable(traces)
    table.add(changes([make_operation(1, "drill", start=7000, attributes={names.SOURCE_AGE: 500.0})]))
    assert table.tasks(NOW)[0].last_success_age == pytest.approx(699.9)
    table.add(changes([make_operation(2, "drill", task="other", start=7000, outcome="error", attributes={names.SOURCE_AGE: 500.0})]))
    assert table.tasks(NOW)[1].last_success_age is None


@pytest.mark.parametrize("age", [1e300, 10**30, -1, "old"])
def test_impossible_age_is_not_shown(traces, age):
    """An age that a program recorded and that cannot be is ignored."""
    table = TaskTable(traces)
    table.add(changes([make_operation(1, "drill", start=7000, attributes={names.SOURCE_AGE: age})]))
    assert table.tasks(NOW)[0].last_success_age is None


def test_running_task_without_recent_saves(traces, tmp_path):
    """A task that is running is shown although its last save is older than an hour: saves may be hours apart, or late."""
    attributes = {names.OPERATION: "save", names.OUTCOME: "ok", names.TASK_NAME: "agent"}
    exporter = LocalExporter(tmp_path)
    exporter.send([make_span(1, "checkpoint.save", attributes=attributes)])
    exporter.close()
    table = TaskTable(traces)
    table.add(changes(running=[msgspec.structs.replace(make_operation(2, "agent", outcome=RUNNING), kind="task")]))
    [task] = table.tasks(NOW)
    assert (task.task, task.running, task.operations, task.failures) == ("agent", [], 0, 0)
    assert task.last_success_age == pytest.approx(7200, abs=1)


def test_empty_top_says_so(tmp_path, capsys):
    """Without a record, `top` says that nothing was recorded, and where to look."""
    assert main(["top", "--once", "--dir", str(tmp_path / "state")]) == 0
    assert "nothing was recorded in" in capsys.readouterr().err
