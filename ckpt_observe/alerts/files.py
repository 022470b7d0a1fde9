"""The files of a site, by name."""

from __future__ import annotations

from importlib.resources import files as resources
from typing import Final

from ckpt_observe.alerts.plan import Plan, duration
from ckpt_observe.alerts.routing import routing
from ckpt_observe.alerts.rules import rules
from ckpt_observe.support import yaml

_SUBJECT: Final = "checkpoint"
RULES: Final = f"{_SUBJECT}.rules.yml"
ROUTING: Final = "alertmanager.yml"
RUNBOOK: Final = "runbook.md"
_RECEIVERS: Final = "# Receivers are webhooks here: put your pager, mail or chat in their place."
WEBHOOK: Final = "http://127.0.0.1:9099"


def files(plan: Plan, webhook: str = WEBHOOK) -> dict[str, str]:
    """What each file holds."""
    words = f"--interval {duration(plan.interval)} --slo {plan.slo:g}{' --batch' if plan.batch else ''}"
    header = f"# Made by `ckpt-observe rules {words}`."
    return {
        RULES: f"{header}\n{yaml.dump(rules(plan))}",
        ROUTING: f"{header}\n{_RECEIVERS}\n{yaml.dump(routing(plan, webhook))}",
        RUNBOOK: resources(__package__).joinpath(RUNBOOK).read_text(encoding="utf-8"),
    }
