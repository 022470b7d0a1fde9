"""Every dashboard with a real Prometheus that scraped a real run: healthy at first, then with faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import grafana
import pytest
import telemetry
import trainer
from processes import eventually

from ckpt_observe.dashboards import dashboards

pytestmark = pytest.mark.services

DASHBOARDS = dashboards()

EMPTY = {
    "Dropped records by reason": "nothing is dropped in this run",
    "Recording fallbacks": "there are enough pages",
    "Label limit exceeded": "needs more than a hundred tasks",
    "Time until full": "depends on what else the test machine writes",
    "Disk I/O": "nothing reaches a disk on a file system in memory",
}
"""Panels that the run leaves empty, or may."""

HALF_EMPTY = {"Retries and refused spans": "nothing is refused"}
"""Panels with a query that the run leaves empty."""

CROSSED = {
    "Save lateness": "red",
    "Consecutive failures": "red",
    "Success ratio": "red",
    "Interrupted": "orange",
    "Corrupted": "red",
    "Retries": "orange",
}
"""Tiles whose thresholds the faults cross; they are green before."""

UNCROSSED = {
    "Last verified": "a week is longer than a test",
    "Oldest in flight": "ten minutes are longer than a test",
    "Saves that fit": "the disk of a test machine has space",
    "Time until full": "depends on what else the test machine writes",
    "Dropped records": "nothing is dropped in this run",
    "Delivery backlog": "the run is too short",
    "Dead processes": "the live process adopts the records of the dead one",
    "Internal errors": "there are none",
}
"""Tiles whose thresholds the faults do not cross, and why."""

FITS = {
    "bytes": lambda value: value == 0 or 1 <= abs(value) < 2**60,
    "Bps": lambda value: 1 <= value < 2**50,
    "s": lambda value: -1 <= value < 366 * 86400,
    "percentunit": lambda value: 0 <= value < 1e6,
    "locale": lambda value: 0 <= value < 1e15,
    "none": lambda value: 0 <= value < 1e6,
    "cps": lambda value: 0 <= value < 1e6,
}
"""Plausible values of each unit. For example, a Unix timestamp is not a plausible duration."""


@dataclass
class Run:
    """What the dashboards showed, by dashboard and title: while healthy, with faults, and after the process was killed."""

    prometheus: telemetry.Prometheus
    healthy: dict
    faulty: dict
    killed: dict


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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run: two healthy rounds, then the faults, then a save that hangs while the dashboards are queried."""
    root = tmp_path_factory.mktemp("dashboards")
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
        faulty = while_scraped(prometheus)
        process.kill()
        eventually(lambda: not prometheus.query("ckpt_observe_build_info"), "Prometheus knows that the process is gone", 60)
        yield Run(prometheus, healthy, faulty, query_dashboards(prometheus))


def test_every_query_is_valid(run):
    """Prometheus accepts every query, before and after the faults."""
    answers = [
        (title, answer.query, answer.refusal)
        for stage in (run.healthy, run.faulty, run.killed)
        for (_, title), panel_answers in stage.items()
        for answer in panel_answers
    ]
    assert [each for each in answers if each[2]] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_has_data(run, name):
    """Each query of each panel returns data, except those listed with a reason."""
    empty = {
        panel["title"]: [bool(answer.values) for answer in run.faulty[name, panel["title"]]] for panel in grafana.panels(DASHBOARDS[name])
    }
    assert [title for title, has_data in empty.items() if not any(has_data) and title not in EMPTY] == []
    assert [title for title, has_data in empty.items() if any(has_data) and not all(has_data) and title not in HALF_EMPTY] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_units_fit_the_values(run, name):
    """The values are plausible for the unit of the panel."""
    wrong = []
    for panel in grafana.panels(DASHBOARDS[name]):
        units = [panel["fieldConfig"]["defaults"]["unit"]] * len(panel["targets"])
        if panel["type"] == "table":
            properties = [override["properties"][0] for override in panel["fieldConfig"]["overrides"]]
            units = [each["value"] for each in properties if each["id"] == "unit"]
        for unit, answer in zip(units, run.faulty[name, panel["title"]], strict=True):
            negative = answer.query.startswith("-") or "predict_linear" in answer.query or panel["title"] == "Growth"
            wrong += [(panel["title"], unit, value) for value in answer.last if not FITS[unit](abs(value) if negative else value)]
    assert wrong == []


def test_thresholds_are_crossed_by_the_faults(run):
    """A tile is green while healthy and changes colour with the faults; tiles that no fault here changes are listed with a reason."""
    tiles = {
        (name, panel["title"]): panel
        for name, dashboard in DASHBOARDS.items()
        for panel in grafana.panels(dashboard)
        if panel["type"] == "stat"
    }
    tiles = {key: panel for key, panel in tiles.items() if len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) > 1}
    colours = {
        key[1]: [
            grafana.colour(panel, answers[key][0].last[0]) if answers[key][0].values else "empty" for answers in (run.healthy, run.faulty)
        ]
        for key, panel in tiles.items()
    }
    assert set(colours) == set(CROSSED) | set(UNCROSSED)
    assert {title: colours[title] for title in CROSSED} == {title: ["green", colour] for title, colour in CROSSED.items()}
    assert [title for title in UNCROSSED if title != "Time until full" and not set(colours[title]) <= {"green", "empty"}] == []


def test_task_states(run):
    """One task fails and one is late; when their process is killed, both are silent. Operations outside a task keep their state."""
    [panel] = [panel for panel in grafana.panels(DASHBOARDS["checkpoint-overview.json"]) if panel["type"] == "state-timeline"]
    texts = {float(value): shown["text"] for value, shown in panel["fieldConfig"]["defaults"]["mappings"][0]["options"].items()}
    [before], [after], [end] = (answers["checkpoint-overview.json", panel["title"]] for answers in (run.healthy, run.faulty, run.killed))
    states = lambda answer: {labels["task"]: texts[values[-1]] for labels, values in zip(answer.labels, answer.values, strict=True)}  # noqa: E731
    assert states(before) == {"train": "good", "(no task)": "good"}
    assert states(after) == {"train": "failing", "(no task)": "good", "late": "late"}
    assert states(end) == {"train": "silent", "(no task)": "good", "late": "silent"}


def test_overview_of_a_dead_run(run):
    """After the process and its metrics are gone, the Overview still shows to what point the run can be recovered."""
    titles = ("Time since last good save", "Consecutive failures", "Success ratio", "Last verified", "Storage used", "Tasks")
    assert [title for title in titles if not run.killed["checkpoint-overview.json", title][0].values] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_legends_are_unique(run, name):
    """Every series of a panel has its own legend, made of existing labels, without repeated values."""
    for panel in grafana.panels(DASHBOARDS[name]):
        legends = [legend for answer in run.faulty[name, panel["title"]] for legend in answer.legends]
        if panel["type"] not in ("table", "heatmap"):
            assert sorted(legends) == sorted(set(legends)), panel["title"]
            assert [legend for legend in legends if not legend or legend != legend.strip() or "  " in legend] == [], panel["title"]
            words = [legend.split(" · ") for legend in legends]
            assert [each for each in words if len(each) != len(set(each))] == [], panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_variables_have_values(run, name):
    """The variables offer the values of the run."""
    offered = {
        each["name"]: grafana.choices(run.prometheus, each, DASHBOARDS[name])
        for each in DASHBOARDS[name]["templating"]["list"]
        if each["type"] == "query"
    }
    assert offered["job"] == [telemetry.SCRAPED]
    assert offered["instance"] == [f"127.0.0.1:{run.prometheus.scraped}"]
    assert set(offered.get("task", ("train", "evaluate", "late"))) == {"train", "evaluate", "late"}


def test_exemplars(run):
    """Each query with exemplars returns some, with a trace ID."""
    dashboard = DASHBOARDS["checkpoint-operations.json"]
    asking = [(panel, target) for panel in grafana.panels(dashboard) for target in panel["targets"] if target.get("exemplar")]
    assert {panel["title"] for panel, _ in asking} == {"Duration percentiles", "Duration heatmap"}
    for panel, target in asking:
        exemplars = run.prometheus.exemplars(grafana.interpolated(dashboard, panel, target["expr"])[0])
        assert all(len(exemplar["labels"]["trace_id"]) == 32 for series in exemplars for exemplar in series["exemplars"])
        assert exemplars


def test_print_dashboards(run, capsys):
    """Prints the dashboards as a table: titles, number of series, one of them with its value, and the colour of a tile."""
    rows = []
    for name, dashboard in DASHBOARDS.items():
        for panel in grafana.panels(dashboard):
            answers = run.faulty[name, panel["title"]]
            unit = "short" if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]["unit"]
            some = [(legend, value) for answer in answers for legend, value in zip(answer.legends, answer.last, strict=True)]
            if panel["type"] == "table":
                some = [(f"{len(answers)} columns", max(len(answer.values) for answer in answers))]
            text = f"{some[-1][0]} = {grafana.shown(unit, some[-1][1])}" if some else panel["fieldConfig"]["defaults"]["noValue"]
            rows.append(
                (
                    dashboard["title"],
                    panel["title"],
                    panel["type"],
                    str(len(some)),
                    text,
                    grafana.colour(panel, some[-1][1]) if some else "",
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    with capsys.disabled():
        print()
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    assert len(rows) == sum(len(grafana.panels(dashboard)) for dashboard in DASHBOARDS.values())
