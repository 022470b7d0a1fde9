"""Grafana dashboards as code.

`variables`, `queries`, `panels` with their `kinds`, and `layouts` are the words; each dashboard is a file that says titles and order.
Every metric and label comes from `semconv`, so a name that changes there breaks the build here and not a dashboard at night. The output
is the classic JSON (schema version 42), which Grafana's file provisioning takes; the newer schema it refuses.
"""

from __future__ import annotations

from typing import Any

from ckpt_observe.dashboards import bridge, operations, overview, storage
from ckpt_observe.dashboards.layouts import as_json

DASHBOARDS = {
    name: module.dashboard
    for name, module in (("overview", overview), ("operations", operations), ("storage", storage), ("bridge", bridge))
}


def dashboards(traces: str = "jaeger") -> dict[str, dict[str, Any]]:
    """Every dashboard by the name of its file. `traces` is the kind of data source that traces are looked up in: `jaeger` or `tempo`."""
    return {f"checkpoint-{name}.json": as_json(make(), name, traces) for name, make in DASHBOARDS.items()}
