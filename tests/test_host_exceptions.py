"""No code that may run in a thread of the host program catches an exception that belongs to the host program."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_observe

PACKAGE = Path(ckpt_observe.__file__).parent

WAITING = """
import sys, threading
if sys.argv[1] == "observed":
    import ckpt_observe
    ckpt_observe.observe(exporters="local", dir=sys.argv[2], pages_dir=sys.argv[2])
    for _ in range(int(sys.argv[3])):
        with ckpt_observe.checkpoint("save"):
            pass
print("ready", flush=True)
threading.Event().wait()
"""
"""A program that waits for Ctrl-C, observed or not, after a number of saves."""

ELSEWHERE = {"alerts", "cli", "dashboards", "testing", "tracestore", "metricstore", "viewer"}
"""Packages whose code runs only in threads and processes of ours. Signal handlers of the host program do not run there."""

BROAD_TYPES = {"Exception", "BaseException", "OSError", "EnvironmentError", "IOError", "TimeoutError", "RuntimeError"}
"""Types that a signal handler of a host program is likely to raise, or their base classes. `except:` counts as one of them."""

GUARDS = {"raise_host_exception", "record_fault", "fault", "fail"}
"""Functions that raise exceptions of the host program again."""


PASSED_ON = {
    ("instrument/managed_phases.py", "_observe_first_use"),
    ("instrument/wrappers.py", "observe"),
    ("instrument/wrappers.py", "_observe_steps"),
    ("instrument/wrappers.py", "__await__"),
    ("record/operation.py", "finish"),
}
"""Functions that pass an exception on in another way: into a generator of the host program, or to a guard when the operation has ended."""


def caught_types(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {"BaseException"}
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(each) for each in types}


def is_guarded(handler: ast.ExceptHandler) -> bool:
    """Return whether the handler raises everything again, or calls a guard with the exception."""
    calls = [node for statement in handler.body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    guards = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in GUARDS]
    last = handler.body[-1]
    is_raised = isinstance(last, ast.Raise) and last.exc is None
    return is_raised or any(ast.unparse(argument) == handler.name for call in guards for argument in call.args)


def unguarded_handlers(source: str, path: str = "") -> list[int]:
    """Return the lines of handlers that may catch an exception of the host program."""
    tree = ast.parse(source)
    allowed = [
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and (path, each.name) in PASSED_ON
    ]
    passed_on = {id(node) for function in allowed for node in ast.walk(function)}
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and id(node) not in passed_on]
    lines = [handler.lineno for handler in handlers if caught_types(handler) & BROAD_TYPES and not is_guarded(handler)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "contextlib"]
    return lines + [node.lineno for node in imports if any(alias.name == "suppress" for alias in node.names)]


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE]


def test_handlers_let_host_exceptions_pass():
    """Each broad `except` raises exceptions of the host program again. `contextlib.suppress` cannot; `ignore_errors` can."""
    wrong = []
    for path in sources():
        name = path.relative_to(PACKAGE).as_posix()
        wrong += [f"{name}:{line}" for line in unguarded_handlers(path.read_text(encoding="utf-8"), name)]
    assert not wrong, "call raise_host_exception(error) first, or use ignore_errors"


@pytest.mark.parametrize(
    "source",
    [
        "try: f()\nexcept Exception: pass",
        "try: f()\nexcept: pass",
        "try: f()\nexcept (KeyError, OSError) as error: raise JournalError() from error",
        "try: f()\nexcept OSError as error:\n    raise_host_exception(other)",
        "from contextlib import suppress",
    ],
)
def test_control_detects_unguarded_handlers(source):
    """Control: a handler without a guard is detected."""
    assert unguarded_handlers(source)


@pytest.mark.parametrize("arguments", [("bare",), ("observed", "0"), ("observed", "1")], ids="-".join)
def test_exit_status_after_ctrl_c(tmp_path, arguments):
    """A program that Ctrl-C ends still ends by SIGINT, although our exit handlers import modules: shells and supervisors look at it."""
    command = [sys.executable, "-c", WAITING, arguments[0], str(tmp_path), *arguments[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.stderr.read()
    assert process.returncode == -signal.SIGINT
