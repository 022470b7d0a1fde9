"""Every dashboard with a real Prometheus that scraped a real run: healthy at first, then with faults."""

from __future__ import annotations

import grafana
import panel_table
import pytest
import telemetry
from demo_run import DASHBOARDS, demo_run, panel_values

pytestmark = pytest.mark.services

CROSSED = {
    "Save lateness": "red",
    "Consecutive failures": "red",
    "Consecutive failed reads": "red",
    "Success ratio": "red",
    "Interrupted": "purple",
    "Corrupted": "red",
    "Retries": "orange",
    "Dead processes": "orange",
}
"""Tiles whose thresholds the faults cross; they are green before."""

UNCROSSED = {
    "Last verified": "a week is longer than a test",
    "Altered states": "no state is altered in this run",
    "Oldest in flight": "ten minutes are longer than a test",
    "Saves that fit": "the disk of a test machine has space",
    "Time until full": "depends on what else the test machine writes",
    "Dropped records": "nothing is dropped in this run",
    "Delivery backlog": "the run is too short",
    "Internal errors": "there are none",
}
"""Tiles whose thresholds the faults do not cross, and why."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with demo_run(tmp_path_factory.mktemp("dashboards")) as run:
        yield run


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
def test_values_are_in_their_ranges(run, name, capsys):
    """Every panel has the unit and the values of the table of panels. Prints what the panels show."""
    key = name.removeprefix("checkpoint-").removesuffix(".json")
    values, expected = panel_values(run.faulty)[key], panel_table.PANELS[key]
    assert list(values) == list(expected)
    with capsys.disabled():
        print()
        for title, series in values.items():
            print(f"{key:13}  {title:37}  {'  '.join(f'{each} = {value:.4g}' for each, value in series.items()) or 'empty'}")
    units = {panel["title"]: panel_table.units(panel) for panel in grafana.panels(DASHBOARDS[name])}
    assert {title: wrong for title in expected if (wrong := panel_table.problems(expected[title], units[title], values[title]))} == {}


PLANTED = {
    "milliseconds for seconds": ("operations", "Traces by duration", lambda expr: f"{expr} * 1e6"),
    "Unix time for an age": ("overview", "Time since last good save", lambda expr: expr.replace("time() -", "0 +")),
    "no division by the number of operations": ("operations", "Checkpoint size", lambda expr: f"{expr} * 1e6"),
    "misspelt label value": ("overview", "Saves by outcome", lambda expr: expr.replace('operation=~"save"', 'operation=~"saves"')),
    "lost label": ("operations", "Operations by outcome", lambda expr: expr.replace("by (outcome)", "by (operation)")),
    "rate for a count": ("operations", "Operations by type", lambda expr: expr.replace("increase(", "rate(")),
    "best instead of worst": ("overview", "Save lateness", lambda expr: expr.replace("max(", "min(", 1)),
}
"""Panels with a wrong query: dashboard, title and change."""


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_wrong_query_is_out_of_range(run, fault):
    """Control: a panel with a wrong query fails, and the same panel without the change does not."""
    key, title, plant = PLANTED[fault]
    name = f"checkpoint-{key}.json"
    [panel] = [panel for panel in grafana.panels(DASHBOARDS[name]) if panel["title"] == title]
    planted = {**panel, "targets": [{**target, "expr": plant(target["expr"])} for target in panel["targets"]]}
    good, bad = (
        panel_table.problems(panel_table.PANELS[key][title], panel_table.units(panel), grafana.values(each, run.query(name, each)))
        for each in (panel, planted)
    )
    assert good == []
    assert bad


def test_lateness_fits_work_at_risk_and_interval(run):
    """In the table of tasks, lateness is work at risk divided by the expected interval, and a task that saved in this run has its age at risk."""
    cells = panel_values(run.faulty)["overview"]["Tasks"]
    for task in ("train", "late"):
        at_risk, interval = cells[f"Work at risk: {task}"], cells[f"Interval: {task}"]
        assert cells[f"Lateness: {task}"] == pytest.approx(at_risk / interval, rel=0.01, abs=1 / interval)
        assert at_risk == pytest.approx(cells[f"Last save: {task}"], abs=1)


def test_forecast_is_plausible(run):
    """Free space is not forecast to grow, at no step of the graph: the forecast is the free space minus what the last window used."""
    name = "checkpoint-storage.json"
    [panel] = [panel for panel in grafana.panels(DASHBOARDS[name]) if panel["title"] == "Free space and forecast"]
    free, forecast = run.query(name, panel)
    [now], [later] = free.values, forecast.values
    assert len(later) > grafana.WINDOW
    assert all(each <= limit for each, limit in zip(later[::-1], now[::-1], strict=False))


def test_storage_is_that_of_the_disk(run):
    """Free space is what the file system says, the saves that fit are free space divided by the size of the largest save, and storage
    that was empty before the run has grown by all that it uses."""
    tiles = {title: next(iter(values.values()), None) for title, values in panel_values(run.faulty)["storage"].items()}
    assert tiles["Free space"] == pytest.approx(run.free_space, rel=0.2)
    sizes = panel_values(run.faulty)["storage"]["Checkpoint size by task"]
    assert tiles["Saves that fit"] == pytest.approx(run.free_space / max(sizes.values()), rel=0.2)
    assert tiles["Storage growth"] == tiles["Storage used"] == pytest.approx(sum(stored_sizes(run)), rel=0.01)


def stored_sizes(run):
    return panel_values(run.faulty)["storage"]["Storage used by task"].values()


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
    titles = (
        "Time since last good save",
        "Consecutive failures",
        "Consecutive failed reads",
        "Success ratio",
        "Last verified",
        "Storage used",
        "Tasks",
    )
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
    assert {panel["title"] for panel, _ in asking} == {"Traces by duration"}
    for panel, target in asking:
        exemplars = run.prometheus.exemplars(grafana.interpolated(dashboard, panel, target["expr"])[0])
        assert all(len(exemplar["labels"]["trace_id"]) == 32 for series in exemplars for exemplar in series["exemplars"])
        assert exemplars
