"""Alerts end to end: a failing program, Prometheus, Alertmanager and a receiver. The rules are generated for a site that saves every two seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import alert_scenes
import pytest
import telemetry
from processes import answers, eventually
from webhook import Webhook

from ckpt_observe.alerts.rule_files import routing, rules
from ckpt_observe.alerts.site import Site
from ckpt_observe.support import yaml

pytestmark = pytest.mark.services

SITE = Site(interval=2, batch=True)
EXPECTED = {
    "failing": ("page", "CheckpointFailing"),
    "stalled": ("page", "CheckpointStale"),
    "damaged": ("page", "CheckpointCorrupted"),
    "killed": ("ticket", "CheckpointInterrupted"),
}
ALSO = {"failing": {"CheckpointFailureRatio", "CheckpointErrorBudgetBurn"}, "damaged": {"CheckpointRestoreFailing"}}
"""Alerts that may fire as well: before the alert that inhibits them, or after it is resolved."""
OF_THE_MACHINE = {"CheckpointStuck", "CheckpointStorageFilling"}
"""Alerts that may fire on a loaded machine: at two-second saves, a third of a second counts as long, and the disk forecast is three minutes."""


@pytest.fixture
def site(tmp_path):
    """Prometheus with our rules, and Alertmanager with our routing and shorter waits; yields the scraped port and the notifications."""
    with ExitStack() as running:
        hook = running.enter_context(Webhook().running())
        config = routing(SITE, hook.url)
        for route in (config["route"], *config["route"]["routes"]):
            route.update(group_wait="500ms", group_interval="1s")
        alertmanager = telemetry.Alertmanager(_create(tmp_path / "alertmanager"), config)
        running.enter_context(alertmanager.running())
        prometheus = telemetry.Prometheus(_create(tmp_path / "prometheus"), rules=yaml.dump(rules(SITE)), alertmanager=alertmanager.port)
        running.enter_context(prometheus.running())
        yield prometheus.scraped, hook.notifications


def _create(directory):
    directory.mkdir()
    return directory


@pytest.fixture
def scene(site, state, tmp_path):
    """Start a scene; returns its process."""
    variables = {
        "CKPT_OBSERVE_DIR": state,
        "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages",
        "CKPT_OBSERVE_EXPORTERS": "prometheus,local",
        "OTEL_EXPORTER_PROMETHEUS_PORT": site[0],
    }
    environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    with ExitStack() as running:

        def start(name):
            command = [sys.executable, alert_scenes.__file__, name, str(tmp_path / name)]
            process = running.enter_context(subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            running.callback(process.kill)
            return process

        yield start


def wait_for_all(status, notifications):
    """Wait until every expected alert has been notified with this status."""
    for name, (receiver, alert) in EXPECTED.items():
        expected = (receiver, status, alert, name)
        eventually(lambda expected=expected: expected in notifications, f"{expected}; got {notifications}", 90)


def test_right_alert_arrives_and_resolves(scene, site):
    """Saves that fail three times, stop, are damaged in the store or are interrupted by kill -9 each raise their own alert at the right receiver.
    It resolves when the cause is removed (the last one by itself). A healthy run raises nothing, and the watchdog fires all the time."""
    port, notifications = site
    keeper = scene("keeper")
    eventually(lambda: answers(f"http://127.0.0.1:{port}/metrics"), "the keeper serves metrics", 60)
    programs = {name: scene(name) for name in ("well", *EXPECTED)}
    wait_for_all("firing", notifications)
    programs.pop("killed").wait(60)
    for process in programs.values():
        process.communicate(b"\n", timeout=120)
    wait_for_all("resolved", notifications)
    assert keeper.poll() is None
    alerts_by_task = {}
    for _, status, alert, task in notifications:
        if status == "firing" and alert not in OF_THE_MACHINE:
            alerts_by_task.setdefault(task, set()).add(alert)
    assert alerts_by_task.pop("") == {"CheckpointWatchdog"}
    assert {task: alerts - ALSO.get(task, set()) for task, alerts in alerts_by_task.items()} == {
        name: {alert} for name, (_, alert) in EXPECTED.items()
    }
    assert {receiver for receiver, _, alert, _ in notifications if alert == "CheckpointWatchdog"} == {"deadman"}
