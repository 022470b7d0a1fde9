"""The rule file of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ckpt_observe.alerts import bridge, growth, reads, saves
from ckpt_observe.alerts.alert import Alert
from ckpt_observe.alerts.plan import Plan, duration

GROUPS: Final[dict[str, Callable[[Plan], list[Alert]]]] = {
    "checkpoint-saves": saves.alerts,
    "checkpoint-reads": reads.alerts,
    "checkpoint-growth": growth.alerts,
    "checkpoint-bridge": bridge.alerts,
}


def every_alert(plan: Plan) -> list[Alert]:
    return [alert for alerts in GROUPS.values() for alert in alerts(plan)]


def rules(plan: Plan) -> dict[str, Any]:
    """What the file says."""
    return {"groups": [{"name": name, "rules": [_rule(alert, plan) for alert in alerts(plan)]} for name, alerts in GROUPS.items()]}


def _rule(alert: Alert, plan: Plan) -> dict[str, Any]:
    made: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.hold:
        made["for"] = duration(alert.hold)
    made["labels"] = {"severity": alert.severity, **alert.labels}
    link = f"{plan.runbook}#{alert.name.lower()}"
    return {**made, "annotations": {"summary": alert.summary, "description": alert.description, "runbook_url": link}}
