"""The tiles on reads, evaluated by promtool: they are above zero for a task whenever its alert is, from the first failure on."""

from __future__ import annotations

import json
import subprocess
from typing import NamedTuple

import alert_cases
import grafana
import pytest
from processes import program

from ckpt_observe.dashboards import dashboards
from ckpt_observe.semconv import metrics

pytestmark = pytest.mark.services

OVERVIEW = dashboards()["checkpoint-overview.json"]
NOW = 20
"""Minutes at which the tiles are looked at: the time range of the dashboard begins before all samples."""
GONE_AFTER = 10
"""Minutes after which the metrics of an instance that is gone end."""


class Instance(NamedTuple):
    """What an instance of the task reports: how often in a row a restore failed, and when things last happened, in seconds."""

    failures: int | None = None
    failed: dict[str, float] = {}  # noqa: RUF012 - never changed
    """By class of error."""
    restored: float = 0.0
    altered: float = 0.0
    verified: float = 0.0
    is_gone: bool = False

    def series(self, name):
        """Return its series in promtool's notation."""
        restore = {"operation": "restore"}
        values = [
            (metrics.CONSECUTIVE_FAILURES, restore, self.failures),
            *((metrics.LAST_FAILURE, {**restore, "error_class": error_class}, time) for error_class, time in self.failed.items()),
            (metrics.LAST_SUCCESS, restore, self.restored or None),
            (metrics.LAST_ALTERED, restore, self.altered or None),
            (metrics.LAST_VERIFIED, {}, self.verified or None),
        ]
        end = f"x{GONE_AFTER} stale" if self.is_gone else f"x{NOW}"
        about = {"instance": name, "task": "train"}
        return [
            {"series": alert_cases.series(spec, "", {**about, **labels}), "values": f"{value}{end}"}
            for spec, labels, value in values
            if value is not None
        ]


GOOD = Instance(0, restored=300, verified=300)
CASES = {
    "a good restore": ((GOOD,), 0, 0),
    "the first restore fails": ((Instance(1, {"storage": 60}),), 1, 0),
    "a good restore, then failures": ((Instance(2, {"storage": 60}, restored=30),), 2, 0),
    "failures, then a good restore": ((Instance(0, {"storage": 60}, restored=90),), 0, 0),
    "a first run has no checkpoint": ((Instance(1, {"not_found": 60}),), 0, 0),
    "a failure, a good restore, then no checkpoint": ((Instance(1, {"storage": 60, "not_found": 180}, restored=120),), 0, 0),
    "a failure, while another instance restores": ((Instance(1, {"storage": 60}), GOOD), 1, 0),
    "a failure, and the instance is gone": ((Instance(3, {"storage": 60}, is_gone=True),), 3, 0),
    "a failure, and a new instance restores": ((Instance(3, {"storage": 60}, is_gone=True), GOOD), 0, 0),
    "the first state is altered": ((Instance(0, restored=60, altered=60),), 0, 1),
    "an altered state, then a correct one": ((Instance(0, restored=90, altered=60, verified=90),), 0, 0),
    "a correct state, then an altered one": ((Instance(0, restored=90, altered=90, verified=60),), 0, 1),
    "an altered state, while another instance restores": ((Instance(0, restored=60, altered=60), GOOD), 0, 1),
    "an altered state, and the instance is gone": ((Instance(0, restored=60, altered=60, is_gone=True),), 0, 1),
    "an altered state, and a new instance restores": ((Instance(0, restored=60, altered=60, is_gone=True), GOOD), 0, 0),
    "no read": ((Instance(),), None, None),
}
"""The instances of a task, and what the tiles show: failed reads and altered states."""


def check(title, expected):
    """Return promtool's check that a tile shows a number, or no value."""
    [panel] = [panel for panel in grafana.panels(OVERVIEW) if panel["title"] == title]
    [target] = panel["targets"]
    expression, _ = grafana.interpolated(OVERVIEW, panel, target["expr"])
    samples = [] if expected is None else [{"labels": "{}", "value": expected}]
    return {"expr": expression.replace(f"[{grafana.RANGE}s]", "[1h]"), "eval_time": f"{NOW}m", "exp_samples": samples}


def run(directory, *tests):
    (directory / "tests.yml").write_text(json.dumps({"evaluation_interval": "1m", "tests": [{"interval": "1m", **each} for each in tests]}))
    command = [program("promtool"), "test", "rules", directory / "tests.yml"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def test_tiles_show_unresolved_trouble(tmp_path):
    """A tile shows trouble until it is resolved on the same instance, or until a new instance reads well; a missing checkpoint is no trouble."""
    tests = [
        {
            "name": name,
            "input_series": [series for number, instance in enumerate(instances) for series in instance.series(f"host-{number}")],
            "promql_expr_test": [check("Consecutive failed reads", failed), check("Altered states", altered)],
        }
        for name, (instances, failed, altered) in CASES.items()
    ]
    code, output = run(tmp_path, *tests)
    assert code == 0, output


def test_wrong_value_is_detected(tmp_path):
    """Control: promtool refuses another value."""
    code, output = run(tmp_path, {"input_series": GOOD.series("host"), "promql_expr_test": [check("Consecutive failed reads", 1)]})
    assert code == 1, output
