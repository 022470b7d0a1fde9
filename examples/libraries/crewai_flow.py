"""Observe CrewAI. Run `python examples/libraries/crewai_flow.py`, then `ckpt-observe traces`.

A flow without a language model saves its state after each method. A second flow loads the state and goes on.
"""

import os
import tempfile
from pathlib import Path

import ckpt_observe.auto  # noqa: F401  # first, so that it sees the import of CrewAI

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"

from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import SQLiteFlowPersistence, persist

with tempfile.TemporaryDirectory() as directory:

    @persist(SQLiteFlowPersistence(str(Path(directory) / "flows.db")))
    class Report(Flow):
        @start()
        def collect(self):
            self.state["pages"] = [*self.state.get("pages", ()), "otters"]

        @listen(collect)
        def write(self):
            return f"{len(self.state['pages'])} pages"

    flow = Report(suppress_flow_events=True)
    print(flow.kickoff())
    print(Report(suppress_flow_events=True).kickoff(inputs={"id": flow.flow_id}))
