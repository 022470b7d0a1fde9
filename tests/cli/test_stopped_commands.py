"""No command that prints a result fails if its reader stops early, or if Ctrl-C interrupts it.

Marked `faults`, because they start 48 processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_commands import TASK
from test_json_schemas import LANGGRAPH, environment, record

from ckpt_observe.cli.main import COMMANDS

INTERRUPTED = """
import signal, sys
class Output:
    encoding, fileno = "utf-8", sys.stdout.fileno
    def isatty(self): return False
    def flush(self): pass
    def write(self, text): signal.raise_signal(signal.SIGINT)
sys.stdout = Output()
sys.argv[0] = "ckpt-observe"
from ckpt_observe.__main__ import main
sys.exit(main())
"""
"""Runs a command that gets Ctrl-C when it begins to print."""
ARGUMENTS = {
    "doctor": ["doctor", "--json"],
    "traces": ["traces"],
    "why": ["why"],
    "top": ["top", "--once"],
    "timeline": ["timeline"],
    "report": ["report", "TRACE", "--out", "OUT/report.html"],
    "list": ["list", "STORE"],
    "show": ["show", "LANGGRAPH"],
    "diff": ["diff", "STORE", TASK, "latest~1", "latest"],
    "log": ["log", "STORE", TASK],
    "extract": ["extract", "STORE", TASK],
    "verify": ["verify", "STORE", "--json"],
    "prune": ["prune", "STORE", "--keep-last", "1"],
    "drill": ["drill", "STORE"],
    "stats": ["stats"],
    "advise": ["advise"],
    "deliver": ["deliver", "--json"],
    "clean": ["clean"],
    "dashboards": ["dashboards", "--out", "OUT/dashboards"],
    "rules": ["rules", "--out", "OUT/rules"],
    "libraries": ["libraries", "--out", "OUT/pages"],
    "reference": ["reference", "--out", "OUT/pages"],
    "semconv": ["semconv"],
    "completion": ["completion", "bash"],
}
WITHOUT_A_RESULT = {"run", "demo", "tail", "ui", "daemon"}
"""They run or follow programs; `tail` and `top` without `--once` are in `test_live_commands.py`."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def trace_id(recorded):
    """The ID of a recorded trace."""
    command = [sys.executable, "-m", "ckpt_observe", "traces", "--tsv"]
    return subprocess.run(command, env=environment(recorded), capture_output=True, text=True, check=True).stdout.split()[0]


@pytest.fixture
def start(recorded, trace_id, tmp_path):
    """Start a command, in Python with these options; its standard error when it has ended, and its exit code."""

    def start(name, options, stdout):
        directory = record(tmp_path) if name == "deliver" else recorded  # elsewhere, another command has delivered what waited
        words = {"STORE": str(recorded / "store"), "LANGGRAPH": str(LANGGRAPH), "TRACE": trace_id}
        arguments = [words.get(word, word).replace("OUT", str(tmp_path)) for word in ARGUMENTS[name]]
        done = subprocess.run(
            [sys.executable, *options, *arguments],
            env=environment(directory),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    return start


@pytest.mark.faults
@pytest.mark.parametrize("name", ARGUMENTS)
def test_closed_pipe(start, name):
    """`ckpt-observe ... | head` ends without an error: the exit code is 0, and standard error has nothing about the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    code, errors = start(name, ["-m", "ckpt_observe"], writer)
    os.close(writer)
    assert (code, "Traceback" in errors, "pipe" in errors) == (0, False, False), errors


@pytest.mark.faults
@pytest.mark.parametrize("name", ARGUMENTS)
def test_ctrl_c(start, name):
    """Ctrl-C while a command prints ends it with its exit code, without a traceback."""
    code, errors = start(name, ["-c", INTERRUPTED], subprocess.DEVNULL)
    assert (code, "Traceback" in errors) == (128 + signal.SIGINT, False), errors


def test_every_command_is_tested():
    """A new command fails this test."""
    assert {*ARGUMENTS, *WITHOUT_A_RESULT} == set(COMMANDS)
