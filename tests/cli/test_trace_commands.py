"""`traces`, `why`, `timeline` and `report` on programs that were really recorded: good, slow, failed and killed."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import ckpt_observe
from ckpt_observe.cli.main import main
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.query import open_traces
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import make_span
from ckpt_observe.tracestore import FILENAME

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time
import ckpt_observe.auto, ckpt_observe

def save(step, seconds=0.0, error=None, killed=False):
    with ckpt_observe.checkpoint("save", id=f"ckpt-{step}", step=step) as operation:
        with operation.phase("serialize"):
            pass
        with operation.phase("write"):
            time.sleep(seconds)
            if error:
                raise error
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)

with ckpt_observe.task("trainer", id="run-1"):
    for step in range(1, 8):
        save(step)
    save(8, seconds=2.0)
    try:
        save(9, error=OSError(28, "No space left on device"))
    except OSError:
        pass
    with ckpt_observe.checkpoint("restore", id="ckpt-8", step=8):
        pass
    save(10, killed=True)
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The state directory of a program that saved, was slow once, failed once, restored, and was killed during its last save."""
    directory = tmp_path_factory.mktemp("recorded")
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(directory / "state"), "CKPT_OBSERVE_PAGES_DIR": str(directory / "pages")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**environ, "CKPT_OBSERVE_EXPORTERS": "local"}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert main(["traces", "--dir", str(directory / "state")]) == 0
    return directory / "state"


@pytest.fixture
def run(state, capsys):
    """Run a command on the recorded program; its output."""

    def run(*arguments, code=0):
        assert main([*arguments, "--dir", str(state)]) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def operation_id(state):
    """A function that returns the ID of the save of a step."""

    def find(step):
        with open_traces(state) as traces:
            [operation] = [each for each in traces.operations() if each.name == "save" and each.attributes.get(names.STEP) == step]
        return f"{operation.trace_id[:12]}:{operation.span_id[:8]}"

    return find


def one_line(text):
    return " ".join(text.split())


def validate(command, text):
    schema = json.loads((ROOT / f"docs/schemas/{command}.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        jsonschema.Draft202012Validator(schema).validate(line)
    return lines


def test_why_of_a_task(run):
    """With a task, the newest failure of this task is explained, and nothing of other tasks."""
    assert "The save of step 10 of trainer (run run-1)" in one_line(run("why", "--task", "trainer").out)


def test_run_is_found_by_its_id(run):
    """The id of a run also selects, because it is what the user of an agent knows: the thread."""
    by_name, by_id = (run("traces", "--tsv", "--task", task).out for task in ("trainer", "run-1"))
    assert by_id == by_name != ""
    explained = [json.loads(run("why", "--json", "--task", task).out)["span_id"] for task in ("trainer", "run-1")]
    assert explained[0] == explained[1]


@pytest.mark.parametrize("command", ["why", "advise", "traces", "timeline"])
def test_misspelt_task(run, command):
    """A task that is not recorded is not found, with the most similar name: nothing is said about its operations."""
    done = run(command, "--task", "trianer", code=4)
    assert (done.out, done.err) == ("", "ckpt-observe: no task, program or run 'trianer' is recorded; did you mean 'trainer'?\n")


def test_why_of_a_task_without_failures(tmp_path, capsys):
    """A task that is recorded and did not fail is good news."""
    exporter = LocalExporter(tmp_path)
    exporter.send([make_span(1, "checkpoint.save", attributes={names.OPERATION: "save", names.OUTCOME: "ok", names.TASK_NAME: "good"})])
    exporter.close()
    assert main(["why", "--task", "good", "--dir", str(tmp_path)]) == 0
    assert "no operation of 'good' failed or was interrupted" in capsys.readouterr().err


TWO_TASKS = """
import ckpt_observe
watch = ckpt_observe.observe()
def save(name, id, error=None):
    with ckpt_observe.task(name, id="1"), ckpt_observe.checkpoint("save", id=id):
        if error:
            raise error
save("first", "ckpt-first")
try:
    save("first", "ckpt-failed", OSError(28, "No space left on device"))
except OSError:
    pass
save("second", "ckpt-second")
with ckpt_observe.task("second", id="1"), ckpt_observe.checkpoint("delete", attributes={"checkpoint.whole_task": True}):
    pass
watch.close(60)
"""


def test_why_keeps_tasks_with_equal_run_ids_apart(tmp_path, capsys):
    """Two tasks have runs with the same ID: the one that failed is told to continue from its own checkpoint, and that nothing succeeded since.

    It does not matter that the other one has deleted all its checkpoints.
    """
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages")}
    subprocess.run([sys.executable, "-c", TWO_TASKS], env={**environ, "CKPT_OBSERVE_EXPORTERS": "local"}, check=True)
    assert main(["why", "--dir", str(tmp_path / "state")]) == 0
    text = one_line(capsys.readouterr().out)
    assert "checkpoint ckpt-first" in text
    assert "No later save of this run succeeded." in text
    assert "ckpt-second" not in text


def test_why_of_a_full_disk(run, operation_id):
    """The failed save: phase, class, exception, advice, effect, and that the newest good checkpoint is that of step 8."""
    text = one_line(run("why", operation_id(9)).out)
    assert "The save of step 9 of trainer (run run-1)" in text
    assert "failed in write" in text
    assert "The file system is full (storage.no_space, class capacity)" in text
    assert "OSError: [Errno 28] No space left on device" in text
    assert "Free some space" in text
    assert "newest good save (step 8): checkpoint ckpt-8" in text
    assert "1 other operation failed: save of trainer: interrupted.process_died" in text


def test_why_without_an_id_explains_the_newest_failure(run):
    """On call, the first command needs no ID: it explains the save in which the process was killed."""
    text = one_line(run("why").out)
    assert "The save of step 10 of trainer (run run-1)" in text
    assert re.search(r"was interrupted in write .*: process \d+ died", text)
    assert "No later save of this run succeeded." in text


def test_why_without_an_id_explains_the_operation_and_not_its_task(tmp_path, capsys):
    """If a failed save ends its task, too, the save is explained: it names the cause."""
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
    with pytest.raises(OSError), ckpt_observe.task("trainer", id="run-1"), ckpt_observe.checkpoint("save", step=7):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert watch.close(60)
    assert main(["why", "--dir", str(tmp_path / "state")]) == 0
    assert "The save of step 7 of trainer (run run-1)" in one_line(capsys.readouterr().out)


def test_why_of_a_slow_save(run, operation_id):
    """The slow save succeeded: it is compared with the others, and the phase is named."""
    text = one_line(run("why", operation_id(8)).out)
    assert re.search(r"succeeded and took [2-9]", text)
    assert re.search(r"times as long as usual: the usual time is .* \(median of 7 successful saves of trainer\)", text)
    assert re.search(r"Most of the difference is in write: [2-9]", text)
    assert "Look at the load and the free space of the disk" in text


def test_why_of_a_trace_explains_what_failed(run, operation_id):
    """Of a whole trace, both failures are explained."""
    trace_id = operation_id(9).split(":")[0]
    explanations = validate("why", run("why", trace_id, "--json").out)
    assert [(each["outcome"], each["phase"]) for each in explanations] == [("error", "write"), ("interrupted", "write")]
    assert explanations[0]["restore_checkpoint_id"] == "ckpt-8"


@pytest.mark.parametrize(
    ("id", "code", "error"),
    [("ffff", 4, "no trace ID in"), ("{trace}:zz", 4, "span ID that starts with 'zz'"), ("{trace}:", 0, ""), ("", 0, "")],
)
def test_ids(run, operation_id, id, code, error):
    """A wrong ID is not found, with a hint; a prefix that only one trace has is enough."""
    captured = run("why", id.format(trace=operation_id(9).split(":")[0]), code=code)
    assert error in captured.err


def test_ambiguous_operation(tmp_path, capsys):
    """A span prefix that several operations share lists them."""
    exporter = LocalExporter(tmp_path)
    exporter.send([make_span(number, "checkpoint.save") for number in (0xA1, 0xA2)])
    exporter.close()
    assert main(["why", "0:0", "--dir", str(tmp_path)]) == 2
    assert "is ambiguous; it matches: 000000000000:000000, 000000000000:000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (("--task", "trainer"), 1),
        (("--error", "storage.no_space"), 1),
        (("--error", "capacity"), 1),
        (("--error", "integrity"), 0),
        (("--library", "custom"), 1),
        (("--library", "langgraph"), 0),
        (("--operation", "restore", "--outcome", "ok"), 1),
        (("--operation", "restore", "--outcome", "error"), 0),
        (("--since", "1h"), 1),
        (("--until", "2020-01-01T00:00Z"), 0),
        (("--since", "2020-01-01T00:00Z", "--until", "2020-01-02T00:00Z"), 0),
        (("--outcome", "running"), 0),
    ],
    ids=str,
)
def test_filters(run, filters, count):
    """Traces are selected by time, task, operation, outcome, error class or code, and library."""
    captured = run("traces", "--tsv", *filters)
    assert len(captured.out.splitlines()) == count
    assert ("no matching traces" in captured.err) == (not count)


def test_misspelt_error_gets_a_suggestion(run, capsys):
    """A wrong error code is wrong usage, with the most similar one."""
    with pytest.raises(SystemExit) as caught:
        main(["traces", "--error", "storage.no_spce"])
    assert caught.value.code == 2
    assert "did you mean 'storage.no_space'?" in capsys.readouterr().err


def test_timeline(run):
    """The text shows saves and the restore in lanes, the failures as letters; the JSON has every operation."""
    text = run("timeline").out
    assert re.search(r"^trainer save +=+.*X", text, re.MULTILINE)
    assert "E failed" in text
    assert re.search(r"^trainer restore ", text, re.MULTILINE)
    assert len(validate("timeline", run("timeline", "--json").out)) == 11
    assert len(validate("timeline", run("timeline", "--json", "--outcome", "error").out)) == 1


@pytest.mark.parametrize("name", ["x.svg", "x.html"])
def test_timeline_file(run, tmp_path, name):
    """The picture is one private file; its path is printed."""
    path = tmp_path / name
    assert run("timeline", "--out", str(path)).out == f"{path}\n"
    assert "trainer save" in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o077 == 0


def test_report(run, tmp_path, operation_id):
    """The report explains both failures, and contains the tree that `traces` prints."""
    path = tmp_path / "report.html"
    trace_id = operation_id(9).split(":")[0]
    assert run("report", trace_id, "--out", str(path)).out == f"{path}\n"
    text = path.read_text(encoding="utf-8")
    assert "The file system is full" in text
    assert "process_died" in text
    assert "ckpt_observe" in text
    assert run("traces", trace_id).out.splitlines()[0] in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("timeline", "--out", "x.png"), "must end with .svg or .html"),
        (("timeline", "--since", "soon"), "neither an age"),
        (("report", "ab"), "--out"),
    ],
    ids=str,
)
def test_wrong_usage(arguments, error, capsys):
    """A wrong argument is exit code 2, and named."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 2
    assert error in capsys.readouterr().err


def test_file_that_cannot_be_written(run, operation_id, tmp_path):
    """The error names the file and what to do."""
    (tmp_path / "file").touch()
    error = run("report", operation_id(9), "--out", str(tmp_path / "file" / "x.html"), code=2).err
    assert "x.html: cannot be written (Not a directory); choose another file with --out" in error


@pytest.mark.parametrize("command", [("traces",), ("why",), ("why", "ab"), ("timeline",), ("report", "ab", "--out", "x.html")], ids=str)
def test_empty_state_directory_says_the_next_step(command, tmp_path, capsys):
    """Without a record, every command says how to get one, and creates nothing."""
    assert main([*command, "--dir", str(tmp_path / "state")]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "try `ckpt-observe demo`" in captured.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", [("traces",), ("why",), ("timeline",), ("tail",), ("top", "--once")], ids=str)
def test_store_of_another_version(command, tmp_path, capsys):
    """A store of a newer version is reported in one line, and not changed."""
    exporter = LocalExporter(tmp_path)
    exporter.send([make_span(1, "checkpoint.save")])
    exporter.close()
    with sqlite3.connect(tmp_path / FILENAME) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    content = (tmp_path / FILENAME).read_bytes()
    assert main([*command, "--dir", str(tmp_path)]) == 1
    assert "newer ckpt_observe (schema version 99" in capsys.readouterr().err
    assert (tmp_path / FILENAME).read_bytes() == content


HOSTILE = "\x1b[2J\x1b]0;x\x07\r\u202e<script>"


@pytest.mark.parametrize("command", [("traces", "--last"), ("traces",), ("why", "ab"), ("timeline",), ("top", "--once")], ids=str)
def test_hostile_content_on_a_terminal(command, tmp_path, capsys):
    """Whatever a program recorded, no control character of it reaches the terminal."""
    attributes = {**dict.fromkeys(names.ATTRIBUTES, HOSTILE), names.OPERATION: "save", names.OUTCOME: "error", HOSTILE: HOSTILE}
    del attributes[names.PHASE]  # with it, the span would be a phase
    span = make_span(1, HOSTILE, trace=0xAB << 120, status="error", attributes=attributes, resource={"service.name": HOSTILE})
    recent = make_span(2, HOSTILE, trace=0xAB << 120, attributes=attributes, resource={"service.name": HOSTILE})
    exporter = LocalExporter(tmp_path)
    exporter.send([span, recent])
    exporter.close()
    assert main([*command, "--dir", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", captured.out + captured.err)


@pytest.mark.parametrize("arguments", [("why",), ("timeline",), ("traces", "--last")], ids=str)
def test_closed_pipe(state, arguments):
    """A reader that stops early is not an error."""
    command = [sys.executable, "-m", "ckpt_observe", *arguments, "--dir", str(state)]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed_pipe:
        done = subprocess.run(command, stdout=closed_pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
