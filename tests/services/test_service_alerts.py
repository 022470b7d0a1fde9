"""The whole way of an alert: a real program in trouble, Prometheus, Alertmanager, and who is told. The rules are those of a site that saves every
two seconds, made by the same builder as everybody's."""

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

from ckpt_observe.alerts.files import routing, rules
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
"""Says the same less well; told when what hides it is over, or came first by a hair."""
OF_THE_MACHINE = {"CheckpointStuck", "CheckpointStorageFilling"}
"""True of a loaded machine: a site that saves every two seconds calls a third of one long, and looks three minutes ahead on its disk."""


@pytest.fixture
def site(tmp_path):
    """Prometheus with our rules, and Alertmanager with our routing, hurried up; gives the page that is scraped and who is told."""
    with ExitStack() as running:
        hook = running.enter_context(Webhook().running())
        told = routing(SITE, hook.url)
        for route in (told["route"], *told["route"]["routes"]):
            route.update(group_wait="500ms", group_interval="1s")
        alertmanager = telemetry.Alertmanager(_made(tmp_path / "alertmanager"), told)
        running.enter_context(alertmanager.running())
        prometheus = telemetry.Prometheus(_made(tmp_path / "prometheus"), rules=yaml.dump(rules(SITE)), alertmanager=alertmanager.port)
        running.enter_context(prometheus.running())
        yield prometheus.scraped, hook.told


def _made(directory):
    directory.mkdir()
    return directory


@pytest.fixture
def scene(site, state, tmp_path):
    """Starts a scene; gives its process once it is done with the first part, or dead."""
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


def all_of_them(status, told):
    """Waits until each has been told of."""
    for name, (receiver, alert) in EXPECTED.items():
        wanted = (receiver, status, alert, name)
        eventually(lambda wanted=wanted: wanted in told, f"{wanted}; told were {told}", 90)


def test_right_alert_arrives_and_resolves(scene, site):
    """N7: saves that fail three times, stop, are damaged in the store, or are cut short by kill -9 raise each its own alert, at the right receiver,
    which resolves when it is put right (the last: in time). A run that ends well raises nothing; the dead man's switch is fed all the while."""
    page, told = site
    keeper = scene("keeper")
    eventually(lambda: answers(f"http://127.0.0.1:{page}/metrics"), "the keeper serves metrics", 60)
    programs = {name: scene(name) for name in ("well", *EXPECTED)}
    all_of_them("firing", told)
    programs.pop("killed").wait(60)
    for process in programs.values():
        process.communicate(b"\n", timeout=120)
    all_of_them("resolved", told)
    assert keeper.poll() is None
    found = {}
    for _, status, alert, task in told:
        if status == "firing" and alert not in OF_THE_MACHINE:
            found.setdefault(task, set()).add(alert)
    assert found.pop("") == {"CheckpointWatchdog"}
    assert {task: alerts - ALSO.get(task, set()) for task, alerts in found.items()} == {
        name: {alert} for name, (_, alert) in EXPECTED.items()
    }
    assert {receiver for receiver, _, alert, _ in told if alert == "CheckpointWatchdog"} == {"deadman"}
