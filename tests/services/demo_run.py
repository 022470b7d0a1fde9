"""The demo run with faults that the dashboards are tested with: a real program, scraped by a real Prometheus.

`python tests/services/demo_run.py` runs it and records what every panel shows, for the table in docs/dashboards.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grafana
import telemetry
import trainer
from processes import eventually

from ckpt_observe.dashboards import dashboards

DASHBOARDS = dashboards()


@dataclass
class Run:
    """What the dashboards showed, by dashboard and title: while healthy, with faults, and after the process was killed."""

    prometheus: telemetry.Prometheus
    healthy: dict
    faulty: dict
    killed: dict
    moment: float
    """A Unix time with the faults, before the process was killed."""
    free_space: int
    """Bytes that were free on the disk at that time: on a test machine, others fill it."""

    def query(self, name, panel):
        """Run the queries of a panel as of the moment with the faults."""
        return grafana.run_queries(self.prometheus, DASHBOARDS[name], panel, self.moment)


def query_dashboards(prometheus):
    return {
        (name, panel["title"]): grafana.run_queries(prometheus, dashboard, panel)
        for name, dashboard in DASHBOARDS.items()
        for panel in grafana.panels(dashboard)
    }


def while_scraped(prometheus):
    """PanelQuery the dashboards again if a scrape failed meanwhile: on a loaded machine a scrape may be late, and Prometheus then drops all series."""

    def look():
        began = time.monotonic()
        answers = query_dashboards(prometheus)
        return answers if prometheus.query(f"min_over_time(up[{time.monotonic() - began + 1:.0f}s]) == 1") else None

    return eventually(look, "the dashboards are queried with every scrape in time")


@contextmanager
def demo_run(root):
    """Run the trainer: two healthy rounds, growth, then the faults, then a save that hangs while the dashboards are queried."""
    for name in ("prometheus", "collector"):
        (root / name).mkdir()
    prometheus, collector = telemetry.Prometheus(root / "prometheus"), telemetry.Collector(root / "collector")
    variables = {
        "CKPT_OBSERVE_DIR": root / "state",
        "CKPT_OBSERVE_PAGES_DIR": root / "pages",
        "CKPT_OBSERVE_EXPORTERS": "prometheus,local,otlp",
        "OTEL_EXPORTER_PROMETHEUS_PORT": prometheus.scraped,
        **collector.variables("http/protobuf"),
    }
    command = [sys.executable, trainer.__file__, str(root / "checkpoints")]
    environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}

    def counts(expected, *expressions):
        return eventually(
            lambda: [prometheus.query(each) for each in expressions] == [{(): count} for count in expected],
            f"{expressions}: {expected}",
            60,
        )

    def tell(word):
        process.stdin.write(word.encode() + b"\n")
        process.stdin.flush()

    with prometheus.running(), ExitStack() as living:
        with collector.running():
            process = living.enter_context(subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            living.callback(process.kill)
            for number in (1, 2):
                tell("round")
                counts([number], 'sum(checkpoint_operations_total{operation="list", outcome="ok"})')
            eventually(lambda: prometheus.query('sum(ckpt_observe_delivered_total{exporter="otlp"})'), "the collector has spans", 60)
            healthy = while_scraped(prometheus)
            tell("grow")
            assert process.stdout.readline() == b"grown\n"
        tell("faults")
        tell("hang")
        assert process.stdout.readline() == b"hanging\n"
        counts(
            [1, 3],
            'sum(checkpoint_operations_total{outcome="interrupted"})',
            'sum(checkpoint_operations_total{operation="save", outcome="error"})',
        )
        late = 'time() - checkpoint_last_success_timestamp_seconds{task="late"} > 1 and on (task) checkpoint_in_flight{operation="save", task="late"} == 1'
        eventually(lambda: prometheus.query(late), "a save hangs", 60)
        eventually(lambda: prometheus.query("sum(ckpt_observe_retries_total) > 0"), "a delivery is tried again", 60)
        old_sample = f"checkpoint_storage_free_bytes offset {2 * grafana.WINDOW}s"
        eventually(lambda: prometheus.query(old_sample), "free space is known for longer than the window", 60)
        faulty, moment, free_space = while_scraped(prometheus), time.time(), shutil.disk_usage(root).free
        process.kill()
        eventually(lambda: not prometheus.query("ckpt_observe_build_info"), "Prometheus knows that the process is gone", 60)
        yield Run(prometheus, healthy, faulty, query_dashboards(prometheus), moment, free_space)


def panel_values(answers):
    """Return what every panel showed, by dashboard, title and series."""
    return {
        name.removeprefix("checkpoint-").removesuffix(".json"): {
            panel["title"]: grafana.values(panel, answers[name, panel["title"]]) for panel in grafana.panels(dashboard)
        }
        for name, dashboard in DASHBOARDS.items()
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root, demo_run(Path(root)) as run:
        recorded = Path(__file__).parents[1] / "dashboards" / "panel_values.json"
        recorded.write_text(json.dumps(panel_values(run.faulty), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
