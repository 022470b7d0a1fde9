"""`ckpt-observe deliver` and `ckpt-observe clean`, after programs that ended, were killed, or are running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from collectors import HttpCollector

from ckpt_observe.cli.main import main
from ckpt_observe.cli.next_commands import START_DAEMON, TEST_SERVERS
from ckpt_observe.query import open_traces, read_waiting
from ckpt_observe.support.locks import FileLock
from ckpt_observe.tracestore import FILENAME

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys
import ckpt_observe.auto, ckpt_observe
if "stay" in sys.argv:  # until everything is delivered, however busy the machine is
    ckpt_observe.api.EXIT_TIMEOUT = 120.0
with ckpt_observe.checkpoint("save", id="x") as operation, operation.phase("write"):
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "wait" in sys.argv:
        print("writing", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state directory of programs and commands, which have no other settings."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "LMNR_", "CKPT_OBSERVE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CKPT_OBSERVE_PAGES_DIR", str(tmp_path / "pages"))
    return tmp_path / "state"


@pytest.fixture
def collector(monkeypatch):
    """A server that programs and commands send to."""
    with HttpCollector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.fixture
def run(capsys):
    def run(*arguments, code=0):
        assert main(list(arguments)) == code
        return capsys.readouterr()

    return run


def record(*arguments):
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=False)


@pytest.fixture
def running_program(state):
    """A program that is in a save."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    yield process
    process.kill()
    process.communicate()


def validate(command, text):
    schema = json.loads((ROOT / f"docs/schemas/{command}.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        jsonschema.Draft202012Validator(schema).validate(line)
    return lines


def test_deliver_sends_what_a_killed_program_left(state, collector, run):
    """The interrupted save reaches every configured exporter, the journal is gone, and the exit code says that all has arrived."""
    record("kill")
    assert [(journal.is_alive, journal.is_waiting) for journal in read_waiting(state)] == [(False, True)]
    results = {line["exporter"]: line for line in validate("deliver", run("deliver", "--json").out)}
    assert {name: (row["delivered_spans"], row["waiting_bytes"], row["reason"]) for name, row in results.items()} == {
        "otlp": (2, 0, None),
        "local": (2, 0, None),
    }
    assert {span.name for span in collector.spans.values()} == {"checkpoint.save", "checkpoint.write"}
    assert read_waiting(state) == []


def test_deliver_to_a_server_that_is_down(state, collector, run):
    """What did not arrive is kept; the exit code and the reason say so. Later the same command delivers it."""
    record("kill")
    collector.otherwise = 503
    captured = run("deliver", code=3)
    assert "503" in captured.out
    assert "sent again" not in captured.out, "the command has ended"
    assert "records of 1 process still wait; they are kept on disk" in captured.err
    assert TEST_SERVERS in captured.err
    assert "to send them now, run `ckpt-observe deliver`" in run("traces").err
    assert "to send them now, run `ckpt-observe deliver` with the settings of the program" in run("doctor").out
    collector.otherwise = 200
    assert "-" in run("deliver").out
    assert {span.name for span in collector.spans.values()} == {"checkpoint.save", "checkpoint.write"}


def test_records_that_the_local_store_lacks(state, run):
    """`traces` and `why` say that records of a dead process are missing, here because another process is delivering them."""
    record()
    record("kill")
    [journal] = read_waiting(state)
    line = "records of dead processes (1) are not in the local store yet; to find out why, run: ckpt-observe doctor"
    lock = FileLock.try_acquire(str(state / "journals" / journal.name / "drain.lock"))
    for command in ("traces", "why"):
        errors = run(command).err
        assert line in errors
        assert "wait for a daemon or a server" not in errors
    lock.release()
    assert line not in run("why").err
    assert run("traces").err == ""


def test_refused_spans_have_not_arrived(state, collector, run):
    """If a server will never accept a span, the exit code says that not everything has arrived."""
    record("kill")
    collector.otherwise, collector.accepts_empty = 400, True
    assert "otlp refused some spans" in run("deliver", code=3).err


def test_deliver_with_other_settings_than_the_program(state, collector, run, monkeypatch):
    """Records for another server are not sent to a wrong one: the reason says what is needed."""
    record("kill")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert "another address or key than configured here" in run("deliver", code=3).out
    assert not collector.spans


def test_deliver_for_a_daemon(state, run, monkeypatch):
    """Records that wait for a daemon are delivered if the command is told to act as one."""
    monkeypatch.setenv("CKPT_OBSERVE_DELIVERY", "daemon")
    record()
    monkeypatch.delenv("CKPT_OBSERVE_DELIVERY")
    assert f"waits for a daemon: {START_DAEMON}" in run("deliver", code=3).out
    assert START_DAEMON in run("clean", code=3).err, "`deliver` alone refuses"
    monkeypatch.setenv("CKPT_OBSERVE_DELIVERY", "daemon")
    run("deliver")
    with open_traces(state) as traces:
        assert traces.totals().operations == 1


def test_deliver_waits_for_running_programs(state, running_program, collector, run):
    """A running program delivers itself: without a backlog, there is nothing to do."""
    assert "nothing waits in" in run("deliver").err
    [journal] = read_waiting(state)
    assert (journal.is_alive, journal.pid) == (True, running_program.pid)


def test_nothing_to_deliver_or_clean(state, run):
    """Both commands say so, succeed, and create nothing."""
    assert f"nothing waits in {state}" in run("deliver").err
    assert f"nothing is recorded in {state}" in run("clean").err
    assert not state.exists()


def test_clean_is_a_dry_run_by_default(state, run):
    """Without --yes it lists what it would remove, and removes nothing. With it, the data is gone."""
    record("stay")
    listed = run("clean")
    assert "1 trace with 1 operation" in listed.out
    assert "nothing was removed" in listed.err
    assert (state / FILENAME).exists()
    parts = validate("clean", run("clean", "--yes", "--json").out)
    assert all(part["removed"] for part in parts)
    assert "nothing is recorded" in run("clean").err
    with open_traces(state) as traces:
        assert traces.traces() == []


def test_clean_refuses_what_is_undelivered(state, run, tmp_path):
    """Undelivered records stop it, and it names them; only --undelivered removes them, with their pages."""
    record("kill")
    refused = run("clean", "--yes", code=3)
    assert "undelivered: " in refused.err
    assert "run `ckpt-observe deliver` with the settings of the program, or add --undelivered" in refused.err
    assert refused.err.endswith("ckpt-observe: nothing was removed\n")
    assert "nothing was removed" not in run("clean", code=3).err, "nobody asked for it"
    assert read_waiting(state)
    run("clean", "--yes", "--undelivered")
    assert read_waiting(state) == []
    assert list((tmp_path / "pages").iterdir()) == []


def test_clean_refuses_while_a_program_is_running(state, running_program, run):
    """The data of a running program is in use: nothing is removed, whatever the options."""
    refused = run("clean", "--yes", "--undelivered", code=3)
    assert f"observed programs are running (process {running_program.pid})" in refused.err
    assert read_waiting(state)


def test_clean_never_touches_other_files(state, run):
    """Files that are not ours stay in the state directory."""
    record("stay")
    (state / "notes.txt").write_text("mine")
    (state / "operations.db.backup").write_text("mine")
    run("clean", "--yes")
    assert {path.name for path in state.iterdir() if path.is_file()} >= {"notes.txt", "operations.db.backup"}
    assert not (state / FILENAME).exists()


def test_damaged_journal_is_named(state, run):
    """A journal that cannot be read counts as undelivered, and is removed only if that is asked for."""
    record("kill")
    [journal] = read_waiting(state)
    (state / "journals" / journal.name / "about.json").write_text("{")
    [damaged] = read_waiting(state)
    assert "about.json is damaged" in damaged.problem
    refused = run("clean", "--yes", code=3).err
    assert "about.json is damaged" in refused
    assert "ckpt-observe deliver" not in refused, "it cannot read the journal either"
    run("clean", "--yes", "--undelivered")
    assert not list((state / "journals").iterdir())
    assert not (state / "damaged").exists()


def test_damaged_journals_that_were_moved_aside_are_undelivered(state, run):
    """The records in a damaged journal have not arrived anywhere, so they are removed only if that is asked for."""
    record()
    journal = state / "damaged" / "1-2"
    journal.mkdir(parents=True)
    (journal / "spool").write_bytes(b"records")
    assert "7 B of damaged journals" in run("clean", "--yes", code=3).err
    assert journal.exists()
    run("clean", "--yes", "--undelivered")
    assert not journal.exists()


def test_clean_removes_traces_that_cannot_be_read(run, state):
    """A damaged store of traces is listed and removed like any other, because removing it is the remedy."""
    record("stay")
    (state / FILENAME).write_bytes(b"not a database" * 1000)
    for suffix in ("-wal", "-shm"):
        Path(f"{state / FILENAME}{suffix}").unlink(missing_ok=True)
    assert "traces that cannot be read" in run("clean").out
    run("clean", "--yes")
    assert not (state / FILENAME).exists()


def test_clean_while_files_disappear(state, running_program, run, monkeypatch):
    """A running program removes what it has delivered while `clean` adds up the sizes: such files have none."""
    stat = os.stat

    def stat_of_removed_file(path, **options):
        if options.get("follow_symlinks") is False and str(path).endswith("about.json"):
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_of_removed_file)
    assert "records of process" in run("clean", code=3).out
