"""Grafana dashboards as code.

`queries` has every PromQL query, made of the parts in `promql`. `panels` and `tables` have the panel types, `colours` what colours mean.
`layout` places panels and adds variables and links. Each dashboard is a
module: `overview`, `operations`, `storage` and `observability`. Metric and label names come from `semconv`, so a renamed metric fails the
tests instead of leaving a panel empty. The output is Grafana's classic JSON (schema version 42), because file provisioning rejects newer.
"""

from __future__ import annotations

from typing import Any

from ckpt_observe.dashboards import observability, operations, overview, storage
from ckpt_observe.dashboards.layout import as_json

DASHBOARDS = {
    name: module.dashboard
    for name, module in (("overview", overview), ("operations", operations), ("storage", storage), ("observability", observability))
}


def dashboards(traces: str = "jaeger") -> dict[str, dict[str, Any]]:
    """Return the JSON of every dashboard by file name. `traces` is the type of the data source for traces: `jaeger` or `tempo`."""
    return {f"checkpoint-{name}.json": as_json(build(), name, traces) for name, build in DASHBOARDS.items()}
