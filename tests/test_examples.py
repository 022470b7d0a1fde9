"""Every example runs alone, and leaves the traces that it says it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe.testing.spans import outline
from ckpt_observe.tracestore import FILENAME, TraceReader

EXAMPLES = Path(__file__).parent.parent / "examples"
SAVE = "  checkpoint.save"
LEFT = {
    "own_code.py": [["task train", *[SAVE, "    checkpoint.serialize", "    checkpoint.compress", "    checkpoint.write"] * 3]],
    "asyncio_service.py": [["task chat", *[SAVE, "    checkpoint.write"] * 2]] * 5,
    "resume_agent.py": [
        ["task agent", "  checkpoint.restore", SAVE, SAVE],
        ["task agent", "  checkpoint.restore", SAVE, SAVE, "    checkpoint.prune"],
    ],
}


def test_all_are_here():
    """There is no example that nobody runs."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LEFT)


@pytest.mark.parametrize("name", LEFT)
def test_example(name, tmp_path):
    """It ends well, and its traces are what its docstring says."""
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_RING_DIR": str(tmp_path / "ring")}
    done = subprocess.run([sys.executable, EXAMPLES / name], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with TraceReader(tmp_path / "state" / FILENAME) as reader:
        traces = [outline(reader.spans(trace.trace_id)).splitlines() for trace in reversed(reader.newest())]
    if name == "resume_agent.py":  # its phases are the core's, and tested there
        traces = [[line for line in trace if line.split(".")[-1] in ("restore", "save", "prune", "task agent")] for trace in traces]
    assert traces == LEFT[name]
