"""The commands as a user runs them, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe.cli.main import parser
from ckpt_observe.cli.semconv import page
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tmp_path):
    """`ckpt-observe` with a state directory of the test's own."""

    def run(*words, **variables):
        environment = {
            **os.environ,
            "CKPT_OBSERVE_DIR": str(tmp_path / "state"),
            "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "ckpt_observe", *words], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
        )

    return run


def test_demo(command):
    """The first command of the README: a tree with an interrupted save, its phase, a failure and a restore that links back."""
    done = command("demo")
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "interrupted in write",
        "serialization.unsupported_type",
        "checkpoint.restore",
        "from a save of this trace",
        "1 interrupted",
        "steps to do again: 1",
    ):
        assert words in done.stdout
    trace = re.search(r"ckpt-observe traces ([0-9a-f]{12})", done.stdout)[1]
    assert "interrupted in write" in command("traces", trace).stdout


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("CKPT_OBSERVE_ENABLED", "false"),
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "*"),
    ],
)
def test_demo_shows_itself_all_the_same(command, switch, value):
    """Where observation is switched off, who asks for the demo still sees all of it."""
    done = command("demo", **{switch: value})
    assert (done.returncode, done.stderr) == (0, "")
    assert "9 checkpoint operations: 7 ok, 1 error, 1 interrupted." in done.stdout


def test_demo_goes_elsewhere_too(command):
    """With other destinations, these have all of it as well, the killed save included."""
    done = command("demo", "--exporters", "console")
    assert done.returncode == 0
    for words in ("task demo-agent", "serialization.unsupported_type", "interrupted in write"):
        assert words in done.stdout
        assert words in done.stderr


PROGRAM = """
import sys
from ckpt_observe.core import Checkpointer
print(Checkpointer(sys.argv[1]).save("run", {"a": 1}).task, file=sys.stderr)
print("out")
sys.exit(9)
"""


def test_run(command, tmp_path):
    """An unchanged program is observed; its output, errors and exit code are its own."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = command("run", "--service", "mine", "--", sys.executable, "program.py", str(tmp_path / "ckpt"))
    assert (done.returncode, done.stdout, done.stderr) == (9, "out\n", "run\n")
    spans = [from_json_line(line) for line in command("traces", "--json").stdout.splitlines()]
    assert "checkpoint.save" in {span.name for span in spans}
    assert {span.resource["service.name"] for span in spans} == {"mine"}


def test_run_keeps_the_sites_own_customization(command, tmp_path):
    """A sitecustomize that was there before is still run."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('theirs')")
    done = command("run", "--", sys.executable, "-c", "print('program')", PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout == "theirs\n" * 2 + "program\n", "once for us, once for the program"


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("run",), 2, "run what"),
        (("run", "--", "no-such-program"), 127, "No such file"),
        (("run", "--exporters", "x", "--", "true"), 2, "'x' is not valid"),
    ],
)
def test_run_that_cannot(command, words, code, error):
    """No command, no such program, a wrong setting: said before anything runs."""
    done = command(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr


LEFTOVER = """
import os, signal
import ckpt_observe.auto, ckpt_observe
with ckpt_observe.checkpoint("save", id="x") as operation, operation.phase("commit"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_traces_adopts_disk_limit(command, tmp_path):
    """What a killed program left is in the list, though nothing ran since."""
    killed = command("run", "--", sys.executable, "-c", LEFTOVER)
    assert killed.returncode == -signal.SIGKILL
    [operation] = [
        span for span in map(from_json_line, command("traces", "--json").stdout.splitlines()) if names.OPERATION in span.attributes
    ]
    assert (operation.attributes[names.OUTCOME], operation.attributes[names.ERROR_PHASE]) == ("interrupted", "commit")


def test_traces_says_what_waits(command):
    """Records that wait for somebody else are not in the list; so it says that there are some."""
    program = ("run", "--", sys.executable, "-c", PROGRAM, "memory://")
    command(*program)
    assert command("traces").stderr == ""
    command(*program, CKPT_OBSERVE_DELIVERY="daemon")
    done = command("traces")
    assert done.returncode == 0
    assert done.stderr == "ckpt-observe: what ended processes left (1) waits for a daemon or a server: `ckpt-observe doctor` says which\n"


def test_doctor_is_content(command):
    """All is well: 0, every place was tried, and nothing is left of the trying."""
    done = command("doctor")
    assert done.returncode == 0, done.stdout
    for words in ("state directory", "can be written", "pages", "journals", "patches reference", "CKPT_OBSERVE_DIR"):
        assert words in done.stdout
    assert "problem" not in done.stdout


@pytest.mark.parametrize("trouble", ["setting", "directory", "journal", "store"])
def test_doctor_finds_problems(command, tmp_path, trouble):
    """What is wrong is named, and the exit code is 3."""
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
            (state / "traces.db").write_text("dear diary, " * 100)
    done = command("doctor", **variables)
    assert done.returncode == 3, done.stdout
    assert "problem" in done.stdout


@pytest.mark.parametrize("name", ["demo", "run", "daemon", "traces", "doctor", "dashboards", "rules", "semconv"])
def test_help_says_what_a_command_does(command, name):
    """After the usage comes a sentence about the command, not its name once more."""
    done = command(name, "--help")
    assert done.returncode == 0
    [usage, sentence, *_] = done.stdout.split("\n\n")
    assert usage.startswith(f"usage: ckpt-observe {name} ")
    assert re.match("[A-Z]", sentence), sentence


def test_reference_page():
    """docs/semconv.md is what the tables say now: run `ckpt-observe semconv > docs/semconv.md`."""
    assert (ROOT / "docs" / "semconv.md").read_text(encoding="utf-8") == page()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_readme_python(command, tmp_path, number):
    """Every Python block of the README runs as it stands."""
    code = blocks("python")[number]
    environment = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_readme_commands():
    """Every command in the README exists."""
    text = "\n".join(blocks("sh")) + "\n".join(re.findall(r"`(ckpt-observe [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8")))
    used = set(re.findall(r"ckpt-observe (\w+)", text))
    known = set(next(action.choices for action in parser(())._actions if action.choices and action.metavar == "COMMAND"))
    assert used
    assert used <= known
