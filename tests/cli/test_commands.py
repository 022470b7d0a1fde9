"""The commands as a user runs them, each in its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import commands as benchmark
from ckpt_observe.cli.generated_files import reference
from ckpt_observe.cli.main import COMMANDS, create_complete_parser
from ckpt_observe.cli.next_commands import START_DAEMON
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line

ROOT = Path(__file__).parents[2]


PROGRAM = """
import sys
from ckpt_observe.core import Checkpointer
print(Checkpointer(sys.argv[1]).save("run", {"a": 1}).task, file=sys.stderr)
print("out")
sys.exit(9)
"""


def test_run(command, tmp_path):
    """An unchanged program is recorded, and keeps its output, errors and exit code. One line at its end says what was recorded."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = command("run", "--service", "mine", "--", sys.executable, "program.py", str(tmp_path / "ckpt"))
    assert (done.returncode, done.stdout) == (9, "out\n")
    errors, summary = done.stderr.splitlines()
    assert errors == "run"
    assert re.fullmatch(
        "ckpt-observe: operations and tasks recorded by this process: [1-9]; show .*: ckpt-observe traces --last .*", summary
    )
    spans = [from_json_line(line) for line in command("traces", "--json").stdout.splitlines()]
    assert "checkpoint.save" in {span.name for span in spans}
    assert {span.resource["service.name"] for span in spans} == {"mine"}


def test_run_keeps_the_sitecustomize_of_the_site(command, tmp_path):
    """An existing sitecustomize still runs."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('theirs')")
    done = command("run", "--", sys.executable, "-c", "print('program')", PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout == "theirs\n" * 2 + "program\n", "once for us, once for the program"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("run",), 2, "no program to run"),
        (("run", "--", "no-such-program"), 127, "No such file"),
        (("run", "--exporters", "x", "--", "true"), 2, "'x' is not valid"),
    ],
)
def test_run_errors(command, arguments, code, error):
    """A missing command, an unknown program and a wrong setting are reported before anything runs."""
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr


@pytest.mark.parametrize(("prefix", "error"), [("", "No such file or directory"), ("./", "Permission denied")])
def test_run_of_a_script_without_its_interpreter(command, tmp_path, prefix, error):
    """The error has the command that works; the name of a script that does not exist gets no such advice."""
    (tmp_path / "train.py").touch()
    script = prefix + "train.py"
    done = command("run", "--", script, "--lr", "a b")
    right = f"ckpt-observe run -- python {script} --lr 'a b'"
    assert done.stderr == f"ckpt-observe: {script}: {error}; to run a script, name its interpreter: {right}\n"
    assert "python" not in command("run", "--", "missing.py").stderr


KILLED_PROGRAM = """
import os, signal
import ckpt_observe.auto, ckpt_observe
with ckpt_observe.checkpoint("save", id="x") as operation, operation.phase("commit"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_traces_adopts_dead_processes(command, tmp_path):
    """The operation of a killed program is in the list, although no program ran since."""
    killed = command("run", "--", sys.executable, "-c", KILLED_PROGRAM)
    assert killed.returncode == -signal.SIGKILL
    [operation] = [
        span for span in map(from_json_line, command("traces", "--json").stdout.splitlines()) if names.OPERATION in span.attributes
    ]
    assert (operation.attributes[names.OUTCOME], operation.attributes[names.ERROR_PHASE]) == ("interrupted", "commit")


def test_traces_reports_undelivered_records(command):
    """Records that wait for a daemon are not in the list, so the command mentions them."""
    program = ("run", "--", sys.executable, "-c", PROGRAM, "memory://")
    command(*program)
    assert command("traces").stderr == ""
    command(*program, CKPT_OBSERVE_DELIVERY="daemon")
    done = command("traces")
    assert done.returncode == 0
    assert done.stderr == f"ckpt-observe: records of dead processes (1) wait for a daemon or a server; to send them now, {START_DAEMON}\n"


@pytest.mark.parametrize("is_first", [True, False], ids=["first program", "later program"])
@pytest.mark.parametrize("arguments", [("traces", "--last"), ("traces", "--task", "agent"), ("traces", "abc"), ("why", "--task", "agent")])
def test_undelivered_records_are_mentioned_if_nothing_is_found(command, arguments, is_first):
    """What a user searches for may be among the records that wait for a daemon."""
    program = ("run", "--", sys.executable, "-c", PROGRAM, "memory://")
    if not is_first:
        command(*program)
    command(*program, CKPT_OBSERVE_DELIVERY="daemon")
    done = command(*arguments)
    assert done.returncode == (0 if arguments == ("traces", "--last") and not is_first else 4)
    assert done.stderr.count(f"records of dead processes (1) wait for a daemon or a server; to send them now, {START_DAEMON}") == 1


def test_healthy_doctor_report(command):
    """The exit code is 0, and every directory was checked."""
    done = command("doctor")
    assert done.returncode == 0, done.stdout
    for text in ("state directory", "is writable", "pages", "journals", "patches reference", "CKPT_OBSERVE_DIR"):
        assert text in done.stdout
    assert "problem" not in done.stdout


def test_doctor_leaves_no_directory_behind(command, tmp_path):
    """The directories that the doctor creates for its tests are removed; those that exist stay."""
    (tmp_path / "home").mkdir()
    done = command("doctor", CKPT_OBSERVE_DIR=str(tmp_path / "home/deep/state"), CKPT_OBSERVE_PAGES_DIR=str(tmp_path / "deep/pages"))
    assert done.returncode == 0, done.stdout
    assert list(tmp_path.rglob("*")) == [tmp_path / "home"]


def test_doctor_leaves_the_fallback_directory_out(command, tmp_path):
    """If the state directory cannot be used, the doctor tries others, and removes those that it created."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "tmp").mkdir()
    done = command("doctor", CKPT_OBSERVE_DIR=str(tmp_path / "file/state"), TMPDIR=str(tmp_path / "tmp"))
    assert (done.returncode, "programs use" in done.stdout) == (3, True)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_works_with_every_encoding(command, encoding):
    """Characters that the encoding lacks are replaced in text, and escaped in JSON, without a change to any value."""
    program = "import ckpt_observe.auto, ckpt_observe\nwith ckpt_observe.task('Grüße 你 │'), ckpt_observe.checkpoint('save', id='😀'): pass"
    assert command("run", "--", sys.executable, "-c", program).returncode == 0
    expected = command("traces", "--json", PYTHONIOENCODING="utf-8").stdout
    for arguments in ((), ("--last",), ("--tsv",), ("--json",)):
        done = command("traces", *arguments, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        if arguments == ("--json",):
            assert list(map(from_json_line, done.stdout.splitlines())) == list(map(from_json_line, expected.splitlines()))
        if arguments == ("--last",):
            assert "`- checkpoint.save" in done.stdout
            assert r"id \U0001f600" in done.stdout


@pytest.mark.parametrize("module", ["msgspec", "argparse", "sqlite3"])
def test_ctrl_c_during_imports_is_clean(command, tmp_path, module):
    """Ctrl-C while modules are imported, which takes most of the time of a short command, prints no traceback."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    done = command("traces", PYTHONPATH=str(tmp_path / "slow"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("trouble", ["setting", "directory", "journal", "store"])
def test_doctor_finds_problems(command, tmp_path, trouble):
    """A problem is reported, and the exit code is 3."""
    state = tmp_path / "state"
    variables = {}
    if trouble == "setting":
        variables["CKPT_OBSERVE_EXPORTERS"] = "pigeon"
    elif trouble == "directory":
        state.write_text("a file")
    else:
        (state / "journals" / "1-1").mkdir(parents=True)
        for path in (state, state / "journals"):
            path.chmod(0o700)
        if trouble == "journal":
            (state / "journals" / "1-1" / "about.json").write_text('{"version": 99}')
        else:
            (state / "journals" / "1-1").rmdir()
            (state / "operations.db").write_text("dear diary, " * 100)
    done = command("doctor", **variables)
    assert done.returncode == 3, done.stdout
    assert "problem" in done.stdout


@pytest.mark.parametrize("name", ["demo", "run", "daemon", "traces", "doctor", "dashboards", "rules", "semconv"])
def test_help_describes_the_command(command, name):
    """After the usage comes a sentence about the command."""
    done = command(name, "--help")
    assert done.returncode == 0
    [usage, sentence, *_] = done.stdout.split("\n\n")
    assert usage.startswith(f"usage: ckpt-observe {name} ")
    assert re.match("[A-Z]", sentence), sentence


def test_reference_page():
    """docs/semconv.md is up to date. If not, run: ckpt-observe semconv > docs/semconv.md."""
    assert (ROOT / "docs" / "semconv.md").read_text(encoding="utf-8") == reference()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_readme_python(command, tmp_path, number):
    """Every Python block of the README runs unchanged."""
    code = blocks("python")[number]
    environment = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_readme_commands():
    """Every command in the README exists."""
    text = "\n".join(blocks("sh")) + "\n".join(re.findall(r"`(ckpt-observe [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8")))
    used = set(re.findall(r"ckpt-observe (\w+)", text))
    commands = set(next(action.choices for action in create_complete_parser()._actions if action.choices and action.metavar == "COMMAND"))
    assert used
    assert used <= commands


def test_start_of_every_command_is_measured():
    """`benchmarks.commands` measures the start of each command against `import argparse`."""
    measured = [command.split()[0] for command in benchmark.COMMANDS if not command.startswith("--")]
    assert {*measured, *benchmark.HELP_ONLY} == set(COMMANDS)
