"""A machine on which programs are in trouble (`runbook_scenes`), with a Prometheus that has our alerts, and the commands of the runbook."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack

import processes
import pytest
import runbook_scenes
import telemetry

from ckpt_observe.alerts import observability
from ckpt_observe.alerts.rule_files import rules
from ckpt_observe.alerts.site import DAY, Site
from ckpt_observe.semconv import metrics
from ckpt_observe.support import yaml

PATIENCE = 20
"""Seconds of retries after which the alert on an exporter fires here, instead of 15 minutes."""
SIZE_YESTERDAY = 2_000_000


class Machine:
    """Programs that share a state directory, and a Prometheus that scrapes them. Rules for saves every four seconds."""

    def __init__(self, directory, *, batch):
        self.site = Site(interval=4, batch=batch)
        self.directory, self.programs, self._stack = directory, {}, ExitStack()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(observability, "_PATIENCE", PATIENCE)
            text = yaml.dump(rules(self.site))
        (directory / "prometheus").mkdir()
        self.prometheus = telemetry.Prometheus(directory / "prometheus", rules=text, alertmanager=processes.free_port())
        self.backend = processes.free_port()
        """Where a server for traces would be."""

    def __enter__(self):
        self._remember_yesterday()
        self._stack.enter_context(self.prometheus.running())
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _remember_yesterday(self):
        """Give Prometheus the size of the checkpoints of a day ago."""
        labels = f'instance="127.0.0.1:{self.prometheus.scraped}",job="{telemetry.SCRAPED}",kind="stored",task="growing"'
        name, start = metrics.LAST_SIZE.prometheus_name, int(time.time() - DAY)
        samples = [f"{name}{{{labels}}} {SIZE_YESTERDAY} {moment}" for moment in range(start - 120, start + 1200, 5)]
        file = self.directory / "yesterday.txt"
        file.write_text("\n".join([f"# TYPE {name} gauge", *samples, "# EOF", ""]))
        command = [processes.program("promtool"), "tsdb", "create-blocks-from", "openmetrics", file, self.directory / "prometheus" / "data"]
        subprocess.run(command, check=True, capture_output=True)

    @property
    def environ(self):
        variables = {
            "CKPT_OBSERVE_DIR": self.directory / "state",
            "CKPT_OBSERVE_PAGES_DIR": self.directory / "pages",
            "CKPT_OBSERVE_EXPORTERS": "prometheus,local",
            "OTEL_EXPORTER_PROMETHEUS_PORT": self.prometheus.scraped,
        }
        return {**os.environ, **{name: str(value) for name, value in variables.items()}}

    @property
    def environ_with_backend(self):
        endpoint = f"http://127.0.0.1:{self.backend}"
        return {**self.environ, "CKPT_OBSERVE_EXPORTERS": "otlp,prometheus,local", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}

    def store(self, scene):
        return str(self.directory / "stores" / scene)

    def start(self, scene, name=None, **variables):
        """Start a scene, with these environment variables and under this name, if it is not that of the scene."""
        environ = self.environ_with_backend if scene == "undelivered" else self.environ
        command = [sys.executable, runbook_scenes.__file__, scene, self.store(name or scene)]
        process = subprocess.Popen(command, env={**environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        self.programs[name or scene] = process

    def wait_until_done(self, scene):
        assert self.programs[scene].stdout.readline() == "done\n", f"{scene} ended"

    def resume(self, scene):
        """Let a scene go on."""
        self.programs[scene].stdin.write("\n")
        self.programs[scene].stdin.flush()

    def go_on(self, scene):
        """Let a scene go on, and wait until it has done its next part."""
        self.resume(scene)
        self.wait_until_done(scene)

    def go_on_when(self, scene, expression):
        """Let a scene go on when Prometheus has an answer to this expression."""
        processes.eventually(lambda: self.prometheus.query(expression), f"{expression} before {scene} goes on")
        self.go_on(scene)

    def go_on_after_failure(self, scene, *jobs):
        """Let a scene go on when Prometheus has the first failed save of each of these jobs."""
        failures = f'checkpoint_operations_total{{operation="save", outcome="error", task="{scene}"}} == 1'
        counted = f"count by (job) ({failures})"
        processes.eventually(
            lambda: self.prometheus.query(counted).keys() == {(job,) for job in jobs}, f"{jobs} have a failed save of {scene}"
        )
        self.go_on(scene)

    def command(self, *words, codes=(0,), environ=None):
        """Run `ckpt-observe` on this machine. Return its output."""
        command = [sys.executable, "-m", "ckpt_observe", *words]
        done = subprocess.run(command, env=environ or self.environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in codes, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    def has_fired(self, alert, **labels):
        """Whether Prometheus has fired an alert with these labels."""
        matchers = ", ".join(f'{name}="{value}"' for name, value in {"alertname": alert, "alertstate": "firing", **labels}.items())
        return bool(self.prometheus.query(f"count_over_time(ALERTS{{{matchers}}}[1h])"))

    def is_firing(self, alert, **labels):
        matchers = ", ".join(f'{name}="{value}"' for name, value in {"alertname": alert, "alertstate": "firing", **labels}.items())
        return bool(self.prometheus.query(f"ALERTS{{{matchers}}}"))
