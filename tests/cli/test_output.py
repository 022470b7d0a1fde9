"""The output that all commands share: tables, bars and live views, JSON with schemas, exit codes, suggestions, completion."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jsonschema
import pytest

from ckpt_observe.cli import command_pages, generated_files, main
from ckpt_observe.cli.completion import SHELLS
from ckpt_observe.cli.exit_codes import MEANINGS, code_of
from ckpt_observe.cli.output import Column, live_table, print_table, progress
from ckpt_observe.cli.store_statistics import OPERATION_COLUMNS
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, IntegrityError, MissingExtraError
from ckpt_observe.support.suggestions import suggest

ROOT = Path(__file__).parents[2]
COLUMNS = (Column("NAME", style=lambda name: "red" if name == "bad" else ""), Column("SIZE", "{} B".format, align_right=True))
ROWS = [("a" * 30, 1), ("bad", 12345), ("[bold]:smile:\x1b[2J", 7)]
ESCAPE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def drawn(screen, rows=ROWS):
    print_table(COLUMNS, rows, screen)
    return screen.getvalue()


def test_table_is_the_same_text_on_a_terminal_and_in_a_pipe(terminal):
    """Only colours differ. Markup in a value is text, and a control character is escaped."""
    text, plain = drawn(terminal), drawn(io.StringIO())
    assert "\x1b[31mbad" in text
    assert "\x1b" not in plain
    assert r"[bold]:smile:\x1b[2J" in plain
    assert [line.rstrip() for line in ESCAPE.sub("", text).splitlines()] == plain.splitlines()


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour(terminal, monkeypatch, variable, value):
    """With NO_COLOR or a terminal that knows none, the output contains no escape sequence."""
    monkeypatch.setenv(variable, value)
    assert "\x1b" not in drawn(terminal)


def test_narrow_terminal_loses_no_character(terminal, monkeypatch):
    """Cells are folded, not shortened, because a shortened ID is useless."""
    monkeypatch.setenv("COLUMNS", "20")
    text = ESCAPE.sub("", drawn(terminal, [("0123456789abcdefghij", 5)]))
    assert "…" not in text
    assert "0123456789abcdefghij" in re.sub(r"\s|5 B", "", text)


CHECKPOINTS = (Column("TASK"), Column("ID", whole=True), Column("CREATED", whole=True), Column("SIZE OF ALL", align_right=True))
ID = "20261118T201023-d628a835"


@pytest.mark.parametrize(
    ("width", "folded"),
    [
        (90, set()),
        (70, {"TASK"}),
        (60, {"TASK", "CREATED"}),
        (40, {"TASK", "ID", "CREATED"}),
        (9, {"TASK", "ID", "CREATED", "SIZE OF ALL"}),
    ],
)
def test_narrow_terminal_folds_names_first(terminal, monkeypatch, width, folded):
    """Names are folded first, then times between their words, then IDs, and numbers last. No line is too long."""
    monkeypatch.setenv("COLUMNS", str(width))
    row = ("a-long-name-of-a-task", ID, "2026-11-18 20:10:23", "23.4 kB")
    print_table(CHECKPOINTS, [row], terminal)
    lines = ESCAPE.sub("", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    body = "\n".join(lines[1:])
    whole = {column.header for column, value in zip(CHECKPOINTS, row, strict=True) if value in body}
    assert whole == {column.header for column in CHECKPOINTS} - folded
    if "CREATED" in folded and width > 9:
        assert "2026-11-18" in body
        assert "20:10:23" in body


def test_statistics_fit_a_usual_terminal(terminal, monkeypatch):
    """With 80 columns, `stats` breaks no word."""
    monkeypatch.setenv("COLUMNS", "80")
    print_table(OPERATION_COLUMNS, [("LangGraph", "restore", 1000, 10, 0.0134, 0.124, 0.227, 14_900, "serialize (17.2 ms)")], terminal)
    words = ESCAPE.sub("", terminal.getvalue()).split()
    assert {"LangGraph", "OPERATION", "restore", "LONGEST", "serialize"} <= set(words)


def test_plain_output_does_not_import_rich(tmp_path):
    """Without a terminal, no command pays for the import of rich."""
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save("run", {"a": 1})
    code = f"import sys; from ckpt_observe.cli.main import main; main(['list', {str(tmp_path)!r}]); sys.exit('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "run" in done.stdout) == (0, True), done.stderr


def test_progress_shows_the_time_left_on_a_terminal_only(terminal, monkeypatch, capsys):
    """The bar goes to standard error, counts the parts, and leaves nothing in a log."""
    with progress("Reading", 4) as advance:
        advance()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("Reading", 4) as advance:
        for _ in range(4):
            advance()
    assert "Reading" in terminal.getvalue()
    assert re.search(r"4/4 0:00:00", ESCAPE.sub("", terminal.getvalue()))
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    with progress("Reading", 4) as advance:
        advance()
    assert sys.stderr.getvalue() == "", "its cursor cannot move"


def test_live_table_is_redrawn_on_a_terminal_and_repeated_in_a_log(terminal, monkeypatch, capsys):
    """On a terminal the new rows replace the old ones; in a log they follow."""
    with live_table(COLUMNS) as show:
        show([("a", 1)])
        show([("b", 2)])
    assert capsys.readouterr().out == "NAME  SIZE\na      1 B\n\nNAME  SIZE\nb      2 B\n\n"
    monkeypatch.setattr(sys, "stdout", terminal)
    with live_table(COLUMNS) as show:
        show([("a", 1)])
        show([("b", 2)])
    assert "\x1b[1A" in terminal.getvalue(), "the cursor moves up"


@pytest.mark.parametrize(("word", "hint"), [("tracs", "; did you mean 'traces'?"), ("qqq", "")])
def test_unknown_command(command, word, hint):
    """A wrong command is exit code 2, with the most similar command."""
    done = command(word)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"unknown command {word!r}{hint}\n")
    assert suggest(word, main.COMMANDS) == hint


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(("show", "x", "--jsno"), "; did you mean '--json'?"), (("clean", "--qqq"), ""), (("stats", "--since"), "")],
    ids=str,
)
def test_unknown_option(command, arguments, hint):
    """An unknown option is exit code 2, with the usage of its command and the most similar option."""
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: ckpt-observe {arguments[0]} ")
    assert done.stderr.endswith(f"ckpt-observe {arguments[0]}: error: unrecognized arguments: {arguments[-1]}{hint}\n")


def test_control_characters_of_an_argument(command):
    """A shell may expand `*` to hostile names of files, of which `show` accepts three. The message escapes them."""
    done = command("show", "a", "b", "c", "\x1b[31md")
    assert (done.returncode, done.stderr.endswith("unrecognized arguments: \\x1b[31md\n")) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("traces", "--operation", "sav"), "; did you mean 'save'?"),
        (("extract", "x", "y", "--format", "yml"), "; did you mean 'yaml'?"),
        (("completion", "qqq"), ""),
    ],
    ids=str,
)
def test_unknown_choice(command, arguments, hint):
    """A value that an option does not have is exit code 2, with the values that it has and the most similar one."""
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(rf"invalid choice: '{arguments[-1]}' \(choose from .*\){re.escape(hint)}\n$", done.stderr)


def test_help_imports_no_command():
    """The list of commands is there at once: it does not need their modules, and is the same as with them."""
    code = "import sys; from ckpt_observe.cli.main import main\ntry: main(['--help'])\nfinally: print('ckpt_observe.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})
    listed, _, imported = done.stdout.rstrip().rpartition("\n")
    assert (done.returncode, imported) == (0, "False")
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        assert listed == main.create_complete_parser().format_help().rstrip()


def test_no_command(command):
    """Without a command, the help is printed to standard error with the exit code of wrong usage."""
    done = command()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == command("--help").stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("x"), 2), (MissingExtraError("x", "y"), 2), (CheckpointNotFoundError("x"), 4), (IntegrityError("x"), 1)],
    ids=lambda value: type(value).__name__,
)
def test_errors_have_exit_codes(error, code):
    """The class of an error decides about the exit code."""
    assert code_of(error) == code
    assert code in MEANINGS


def test_memory_that_is_exhausted(monkeypatch, capsys):
    """A command that needs more memory than there is ends with a message, without a traceback."""

    def print_reference(_arguments):
        raise MemoryError

    monkeypatch.setattr(generated_files, "run_semconv", print_reference)
    assert main.main(["semconv"]) == 1
    assert capsys.readouterr() == ("", "ckpt-observe: not enough memory; free some, or raise the limit of this process\n")


def test_reference_of_commands():
    """docs/cli.md and docs/schemas are up to date. If not, run: ckpt-observe reference --out ."""
    files = command_pages.files()
    assert {path: (ROOT / path).read_text(encoding="utf-8") for path in files if (ROOT / path).exists()} == files
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / command_pages.SCHEMAS).iterdir()} == set(files) - {command_pages.PAGE}


def test_schemas_are_valid():
    """Every published schema is a JSON schema."""
    for path in (ROOT / command_pages.SCHEMAS).iterdir():
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_every_json_output_has_a_schema():
    """A command has `--json` if and only if it has a schema."""
    parsers = command_pages.command_parsers()
    with_option = {name for name, parser in parsers.items() if "--json" in parser._option_string_actions}
    assert with_option == set(command_pages.json_types())


def test_doctor_json_matches_its_schema(command):
    """Each line of `doctor --json` is valid."""
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / command_pages.SCHEMAS / "doctor.json").read_text(encoding="utf-8")))
    lines = command("doctor", "--json").stdout.splitlines()
    assert lines
    for line in lines:
        validator.validate(json.loads(line))
    assert not validator.is_valid({"state": 1})


@pytest.mark.parametrize("shell", SHELLS)
def test_completion(command, shell):
    """The script knows every command, and the shell accepts it."""
    done = command("completion", shell)
    assert done.returncode == 0
    assert all(name in done.stdout for name in main.COMMANDS)
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=done.stdout, text=True, check=False).returncode == 0


def test_completion_names_its_extra(command, tmp_path):
    """Without shtab, the message says what to install."""
    (tmp_path / "shtab.py").write_text("raise ImportError('shtab')")
    done = command("completion", "bash", PYTHONPATH=str(tmp_path))
    assert (done.returncode, "pip install 'ckpt-observe[completion]'" in done.stderr) == (2, True)


def test_closed_pipe_is_not_a_fault_of_a_file(tmp_path):
    """`ckpt-observe reference --out DIR | head -1` ends silently: the files are not at fault."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-u", "-m", "ckpt_observe", "reference", "--out", str(tmp_path)]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def shell(script):
    script = script.replace("ckpt-observe", f"{sys.executable} -m ckpt_observe")
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)


def test_control_characters_of_a_path_are_escaped(command, tmp_path):
    """The name of a directory in a message does not colour the terminal."""
    done = command("traces", "--dir", str(tmp_path / "\x1b[31m"))
    assert (done.returncode, "\x1b" in done.stderr, r"\x1b[31m" in done.stderr) == (4, False, True)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk(unbuffered):
    """Output that cannot be written is exit code 1 with a message, and without a traceback."""
    done = shell(f"PYTHONUNBUFFERED={unbuffered} ckpt-observe semconv > /dev/full")
    assert (done.returncode, done.stderr) == (1, "ckpt-observe: the output cannot be written: No space left on device\n")


def test_closed_output_swallows_the_result():
    """Without standard output, as in some schedulers, a command works and says nothing."""
    done = shell("ckpt-observe semconv >&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_closed_standard_error_swallows_messages():
    """Without standard error, no message is printed to standard output, where a program expects only the result."""
    done = shell("ckpt-observe show no-such-file --json 2>&-")
    assert (done.returncode, done.stdout) == (4, "")
