"""Runs the commands with files, directories and databases of other libraries. Used with golden files and with those of installed libraries.

`OUTCOMES` is the table: what each command does with a single checkpoint and with a LangGraph database.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from store_commands import Commands

GOLDEN = Path(__file__).parents[1] / "readers" / "golden"
PASSWORD = "secret-word"
"""The password of a URL in these tests. No command prints it."""
NO_TASKS = "it has neither tasks nor a history. Leave out the task: `ckpt-observe show FILE` shows it"
NO_THREAD = "has no thread 'nobody'"


class Outcome(NamedTuple):
    """Exit code, and a text that standard output or standard error contains."""

    code: int
    text: str


class Command(NamedTuple):
    """The arguments, of which FILE, THREAD and KEY are replaced, and what happens."""

    arguments: str
    single: Outcome
    """With a single checkpoint. KEY is the name of its largest key."""
    database: Outcome
    """With a database of LangGraph. THREAD is a thread, and KEY its largest channel."""


def refused(command: str, instead: str) -> Outcome:
    return Outcome(2, f"`{command}` needs a store of ckpt_observe.core, and LOCATION is not one. Instead: {instead}")


EXTRACT = refused("extract", "`ckpt-observe show`")
PRUNE = refused("prune", "`ckpt-observe show` shows its size; remove its checkpoints with the library that wrote them")
DRILL = refused("drill", "`ckpt-observe verify`")
FILTER = Outcome(2, "--tag: only checkpoints in stores of ckpt_observe.core can be filtered. Leave it out")
SAMPLE = Outcome(2, "need a store of ckpt_observe.core. Leave them out")
GOOD = Outcome(0, "checked the structure of LOCATION: good")
COMMANDS = (
    Command("list FILE", Outcome(0, "LOCATION"), Outcome(0, "THREAD")),
    Command("list FILE --json", Outcome(0, '"format":"FORMAT"'), Outcome(0, '"task":"THREAD"')),
    Command("list FILE THREAD", Outcome(2, NO_TASKS), Outcome(0, "STEP")),
    Command("list FILE THREAD --json", Outcome(2, NO_TASKS), Outcome(0, '"type":"checkpoint"')),
    Command("list FILE nobody", Outcome(2, NO_TASKS), Outcome(4, NO_THREAD)),
    Command("list FILE --tag best", FILTER, FILTER),
    Command("show FILE", Outcome(0, "\nKEY "), Outcome(0, "\nKEY ")),
    Command("show FILE --json --depth 3", Outcome(0, '"name":"KEY"'), Outcome(0, '"name":"KEY"')),
    Command("show FILE --by colour", Outcome(2, "there is no such group"), Outcome(2, "there is no such group; available: thread, step")),
    Command("show FILE THREAD", Outcome(2, NO_TASKS), Outcome(0, "\nKEY ")),
    Command("show FILE THREAD latest --json", Outcome(2, NO_TASKS), Outcome(0, '"name":"KEY"')),
    Command("show FILE nobody", Outcome(2, NO_TASKS), Outcome(4, NO_THREAD)),
    Command("show FILE THREADS", Outcome(2, NO_TASKS), Outcome(4, "did you mean 'THREAD'?")),
    Command("show FILE THREAD step:-1", Outcome(2, NO_TASKS), Outcome(0, "\nstep ")),
    Command("show FILE THREAD step:9999", Outcome(2, NO_TASKS), Outcome(4, "has no checkpoint 'step:9999' among its ")),
    Command("show FILE THREAD at:2001-01-01", Outcome(2, NO_TASKS), Outcome(4, "has no checkpoint 'at:2001-01-01")),
    Command("show FILE THREAD 1", Outcome(2, NO_TASKS), Outcome(2, "'1' is ambiguous: it is the start of ")),
    Command("diff FILE FILE", Outcome(0, "0 changed"), Outcome(0, "0 changed")),
    Command("diff FILE FILE --json", Outcome(0, '"changes":[]'), Outcome(0, '"changes":[]')),
    Command("diff FILE THREAD latest~1 latest", Outcome(2, NO_TASKS), Outcome(3, "changed")),
    Command("diff FILE THREAD latest~1 THREAD latest", Outcome(2, NO_TASKS), Outcome(3, "changed")),
    Command("diff FILE THREAD latest nobody latest", Outcome(2, NO_TASKS), Outcome(4, NO_THREAD)),
    Command("diff FILE THREAD latest~1 latest --json", Outcome(2, NO_TASKS), Outcome(3, '"kind":')),
    Command("log FILE THREAD", Outcome(2, NO_TASKS), Outcome(0, "KEY")),
    Command("log FILE THREAD --key KEY --json", Outcome(2, NO_TASKS), Outcome(0, '"first_with_value":')),
    Command("log FILE nobody", Outcome(2, NO_TASKS), Outcome(4, NO_THREAD)),
    Command("log FILE THREAD --key nothing", Outcome(2, NO_TASKS), Outcome(4, "has a key 'nothing'")),
    Command("extract FILE THREAD", EXTRACT, EXTRACT),
    Command("verify FILE", GOOD, GOOD),
    Command("verify FILE --json", Outcome(0, '"checked":"structure"'), Outcome(0, '"checked":"structure"')),
    Command("verify FILE THREAD", Outcome(2, NO_TASKS), GOOD),
    Command("verify FILE nobody", Outcome(2, NO_TASKS), Outcome(4, NO_THREAD)),
    Command("verify FILE --sample 1", SAMPLE, SAMPLE),
    Command("verify FILE --quarantine", SAMPLE, SAMPLE),
    Command("prune FILE --keep-last 1", PRUNE, PRUNE),
    Command("prune FILE --keep-last 1 --yes", PRUNE, PRUNE),
    Command("drill FILE", DRILL, DRILL),
    Command("stats FILE", Outcome(0, "largest keys: KEY"), Outcome(0, "largest keys: KEY")),
    Command("stats FILE --json", Outcome(0, '"type":"store"'), Outcome(0, '"type":"store"')),
)
IDS = [command.arguments for command in COMMANDS]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run commands that record nothing outside the test."""
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CKPT_OBSERVE_PAGES_DIR", str(tmp_path / "pages"))
    return Commands(capsys)


class Checkpoints(NamedTuple):
    """A location, its format as `show` names it, its largest key, and a thread with several checkpoints if it is a database."""

    location: str
    format: str
    key: str
    thread: str = "thread"
    is_database: bool = False


def check_commands(run, checkpoints):
    """Every command has the outcome of the table, prints nothing to standard output if it fails, and never a password."""
    for command in COMMANDS:
        check_command(run, command, checkpoints)


def check_command(run, command, checkpoints):
    words = {"FILE": checkpoints.location, "THREAD": checkpoints.thread, "KEY": checkpoints.key, "THREADS": f"{checkpoints.thread}s"}
    done = run(*(words.get(word, word) for word in command.arguments.split()))
    expected = command.database if checkpoints.is_database else command.single
    text = expected.text.replace("LOCATION", re.sub("//.*@", "//", checkpoints.location)).replace("FORMAT", checkpoints.format)
    text = text.replace("THREAD", checkpoints.thread).replace("KEY", checkpoints.key)
    assert done.code == expected.code, (command.arguments, done)
    assert text in done.out + done.err, (command.arguments, done)
    assert "Traceback" not in done.err
    assert PASSWORD not in done.out + done.err
    assert done.code in (0, 3) or done.out == "", command.arguments


def check_changes(run, old, new, changed):
    """`diff` of two files names what differs: the path and kind of each change."""
    done = run("diff", old, new, "--json", "--depth", "3")
    assert done.code == 3
    changes = {(".".join(change["path"]), change["kind"]) for change in done.lines[0]["changes"]}
    assert changes - {("metadata.json", "changed")} == changed, "metadata.json of Keras has the second in which it was saved"
    done = run("diff", old, new, "--depth", "3")
    assert done.code == 3
    assert all(f" {path} " in done.out for path, _ in changed), done.out
