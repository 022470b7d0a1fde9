"""The configuration of Alertmanager: who is told, what is left unsaid because another alert says it better, and the dead man's switch."""

from __future__ import annotations

from typing import Any

from ckpt_observe.alerts.alert import CRITICAL
from ckpt_observe.alerts.bridge import WATCHDOG
from ckpt_observe.alerts.plan import Plan
from ckpt_observe.alerts.rules import every_alert


def routing(plan: Plan, webhook: str) -> dict[str, Any]:
    """What the file says. `webhook` gets the notifications, at `/page`, `/ticket` and `/deadman`."""
    receivers = ("ticket", "page", "deadman")
    return {
        "route": {
            "receiver": "ticket",
            "group_by": ["alertname", "job", "task"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "receiver": "deadman",
                    "matchers": [f'alertname="{WATCHDOG}"'],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "30s",  # as long as the group's, it would be due a moment after each turn: every second one only
                },
                {"receiver": "page", "matchers": [f'severity="{CRITICAL}"']},
            ],
        },
        "inhibit_rules": [_inhibition(alert.name, alert.hides) for alert in every_alert(plan) if alert.hides],
        "receivers": [{"name": name, "webhook_configs": [{"url": f"{webhook.rstrip('/')}/{name}"}]} for name in receivers],
    }


def _inhibition(name: str, hidden: tuple[str, ...]) -> dict[str, Any]:
    return {
        "source_matchers": [f'alertname="{name}"'],
        "target_matchers": [f'alertname=~"{"|".join(hidden)}"'],
        "equal": ["job", "instance", "task"],
    }
