"""Every example runs on its own and leaves the traces that its docstring describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe import config, wiring
from ckpt_observe.testing.spans import outline
from ckpt_observe.tracestore import FILENAME, TraceReader

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "own-code.md"
SAVE = "  checkpoint.save"
EXPECTED = {
    "own_code.py": [["task train", *[SAVE, "    checkpoint.serialize", "    checkpoint.compress", "    checkpoint.write"] * 3]],
    "asyncio_service.py": [["task chat", *[SAVE, "    checkpoint.write"] * 2]] * 5,
    "resume_agent.py": [
        ["task agent", "  checkpoint.list", SAVE, SAVE],
        ["task agent", "  checkpoint.list", "  checkpoint.restore", SAVE, SAVE, "      checkpoint.prune"],
    ],
}


def test_every_example_is_tested():
    """Every example is run by a test."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


def test_every_example_of_a_library_is_tested():
    """A test in the environment of its library runs it."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "libraries").glob("*/test_*.py"))
    assert [path.name for path in (EXAMPLES / "libraries").glob("*.py") if f'"{path.name}"' not in tests] == []


def traces_of(program, tmp_path, **settings):
    """Run a program. Return the outline of each trace that it leaves, the oldest first."""
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"), **settings}
    done = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if not (tmp_path / "state").exists():
        return []
    wiring.deliver_dead(config.read(exporters="local", dir=tmp_path / "state"), 60)  # what it had no time for at its exit
    with TraceReader(tmp_path / "state" / FILENAME) as reader:
        return [outline(reader.spans(trace.trace_id)).splitlines() for trace in reversed(reader.newest())]


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, tmp_path):
    """The example succeeds, and its traces are those of its docstring."""
    traces = traces_of(EXAMPLES / name, tmp_path)
    if name == "resume_agent.py":  # phases of the core are tested there
        traces = [[line for line in trace if line.split(".")[-1] in ("list", "restore", "save", "prune", "task agent")] for trace in traces]
    assert traces == EXPECTED[name]


@pytest.fixture
def page(tmp_path):
    """The code blocks of the page on custom code, as one program."""
    program = tmp_path / "program.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)))
    return program


@pytest.mark.parametrize("setting", [{"CKPT_OBSERVE_ENABLED": "false"}, {"OTEL_TRACES_SAMPLER": "always_off"}], ids=str)
def test_page_on_own_code_unobserved(page, tmp_path, setting):
    """The program runs, including its restore, while nothing is recorded."""
    assert traces_of(page, tmp_path, **setting) == []


def test_page_on_own_code(page, tmp_path):
    """The program leaves the traces that the page describes."""
    whole = ["task train", SAVE, "    checkpoint.serialize", "    checkpoint.compress", "    checkpoint.write"]
    awaited = ["task train", SAVE, "    checkpoint.serialize", "    checkpoint.write"]
    restored = ["task train", "  checkpoint.restore", "    checkpoint.read"]
    assert traces_of(page, tmp_path) == [whole, awaited, whole, restored, ["checkpoint.load"]]
