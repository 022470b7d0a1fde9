"""Actions that are killed: a child process acts and dies, and its journal is delivered as a later process would do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import ckpt_observe
from ckpt_observe import exporter_selection
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.span import Span, from_json_line
from tests.fault_matrix import injections
from tests.fault_matrix.place import Place
from tests.fault_matrix.processes_under_fault import run_forked, run_with_system_call_fault
from tests.fault_matrix.rig import STATE, act
from tests.fault_matrix.table import Cell
from tests.faults.oracle import adopt
from tests.faults.worker import FileExporter


def kill(cell: Cell, place: Place, directory: Path) -> list[Span]:
    """Run the action of a cell until its process is killed. Return the operations that were recorded."""
    (directory / "state").mkdir(parents=True)
    if cell.action == "load" and cell.store != "memory":
        state = {"value": injections.Interruption(signal.SIGKILL, "load")}
        place.with_checkpoint(state, format="pickle")
        place.close()
    url = "" if cell.store == "memory" else place.url
    arguments = [url, cell.action, cell.injection, place.task, str(directory)]
    if cell.store == "s3":  # the runtime of its client library does not survive a fork
        subprocess.run([sys.executable, "-m", __name__, json.dumps(arguments)], check=False, cwd=Path(__file__).parents[2])
    elif cell.injection == "killed_in_write":
        run_with_system_call_fault(lambda: act_observed(*arguments), "linkat", "signal=SIGKILL")
    else:
        run_forked(lambda: act_observed(*arguments))
    adopt(directory)
    return [from_json_line(line) for line in (directory / "state" / "spans.jsonl").read_bytes().splitlines() if line]


def act_observed(url: str, action: str, injection: str, task: str, directory: str) -> None:
    """Act, and die."""
    root = Path(directory)
    exporter_selection.EXPORTERS["local"] = lambda *_: FileExporter(root / "state")
    ckpt_observe.observe(exporters="local", dir=root / "state", pages_dir=root / "pages")
    format = "pickle" if injection == "killed" else "json"
    checkpointer = Checkpointer(url or MemoryStore(), format=format)
    state = {"value": injections.Interruption(signal.SIGKILL, action)} if injection == "killed" else STATE
    if action == "load" and not url:
        checkpointer.save(task, state, id="c1")
    injections.arm()
    act(action, checkpointer, task, state)
    os._exit(1)


if __name__ == "__main__":
    act_observed(*json.loads(sys.argv[1]))
