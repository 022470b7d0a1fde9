"""Observe DBOS. Run `python examples/libraries/dbos_workflow.py`, then `ckpt-observe traces`.

A workflow records two steps. A fork of it copies the first one, loads it instead of running it, and records the second.
"""

import tempfile
from pathlib import Path

from dbos import DBOS, SetWorkflowID

import ckpt_observe.auto  # noqa: F401  # first, so that it sees the import of DBOS


@DBOS.step()
def fetch(topic: str) -> dict:
    return {"topic": topic, "pages": [1, 2, 3]}


@DBOS.step()
def summarize(document: dict) -> str:
    return f"{len(document['pages'])} pages on {document['topic']}"


@DBOS.workflow()
def report(topic: str) -> str:
    return summarize(fetch(topic))


with tempfile.TemporaryDirectory() as directory:
    DBOS(config={"name": "report", "system_database_url": f"sqlite:///{Path(directory) / 'steps.sqlite'}", "run_admin_server": False})
    DBOS.launch()
    with SetWorkflowID("report-1"):
        print(report("otters"))
    print(DBOS.fork_workflow("report-1", 2).get_result())
    DBOS.destroy()
