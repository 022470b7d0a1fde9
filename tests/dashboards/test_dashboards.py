"""The dashboards as files: valid for Grafana, and readable. Tests of what they show are in tests/services."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase

import dashboard_schema
import msgspec
import panel_page
import panel_table
import pytest

from ckpt_observe.alerts import observability
from ckpt_observe.alerts.site import Site
from ckpt_observe.cli.main import main
from ckpt_observe.dashboards import colours, dashboards, promql
from ckpt_observe.dashboards.layout import COLUMNS
from ckpt_observe.dashboards.layout import WINDOWS as WINDOW_CHOICES
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import METRICS
from ckpt_observe.semconv.values import ERROR_CLASSES, OUTCOMES

COMMITTED = Path(__file__).parents[2] / "dashboards" / "grafana"
DASHBOARDS = dashboards()
every = pytest.mark.parametrize("name", DASHBOARDS)

SERIES = {
    f"{spec.prometheus_name}{part}": spec
    for spec in METRICS
    for part in (("_bucket", "_sum", "_count") if spec.instrument == "histogram" else ("",))
}
UNITS = {"none", "locale", "percentunit", "bytes", "binBps", "s", "suffix: ×", "suffix: spans/s"}
OPEN_LABELS = {"job", "instance", "task", "key"}
"""Labels without a closed set: a graph by one of them may have hundreds of lines."""
WINDOWS = {"$__rate_interval", "$__range", "$window"}
UNSHOWN = {
    metrics.LAST_ATTEMPT: "adds nothing to the last success, or to the first attempt if there is none",
    metrics.CPU_TIME: "shown by phase",
    metrics.DRILL_AGE: "dashboards show the age of the last save at any time, not only during a drill",
    metrics.FIRST_ATTEMPT: "work at risk counts from the start of the run",
    metrics.ALTERED_KEYS: "dashboards show the tasks with an altered state, and the span names the keys",
}
"""Metrics that no dashboard shows, and why."""


def panels(dashboard):
    """The panels of all rows, including collapsed ones."""
    return [each for panel in dashboard["panels"] for each in (panel["panels"] if panel["type"] == "row" else [panel])]


def targets(dashboard):
    return [(panel, target) for panel in panels(dashboard) for target in panel["targets"]]


def selectors(expression):
    """Every metric of an expression, with its matchers."""
    return [(name, dict(re.findall(r'(\w+)=~"([^"]*)"', matchers))) for name, matchers in re.findall(r"\b(\w+)\{([^{}]*)\}", expression)]


def test_committed_files_are_up_to_date(capsys):
    """If not, run: ckpt-observe dashboards --out dashboards/grafana."""
    assert main(["dashboards", "--check", str(COMMITTED)]) == 0
    assert sorted(path.name for path in COMMITTED.iterdir()) == sorted(DASHBOARDS)


def test_check_reports_differences(tmp_path, capsys):
    """Control: `--check` names an edited file and a missing one; after `--out` it reports nothing."""
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    (tmp_path / "checkpoint-observability.json").unlink()
    (tmp_path / "checkpoint-storage.json").write_bytes(b"\xff")
    assert main(["dashboards", "--check", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert "checkpoint-observability.json" in errors
    assert "checkpoint-storage.json" in errors
    assert "checkpoint-overview.json" not in errors
    assert main(["dashboards", "--out", str(tmp_path)]) == main(["dashboards", "--check", str(tmp_path)]) == 0


def test_unwritable_directory_is_reported(tmp_path, capsys):
    """The command prints a one-line error and fails."""
    (tmp_path / "file").write_text("")
    assert main(["dashboards", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@every
def test_schema_is_the_classic_one(name):
    """File provisioning rejects the newer schema and files from the share dialog. Grafana ignores all other mistakes silently."""
    dashboard = msgspec.convert(DASHBOARDS[name], dashboard_schema.Dashboard)
    assert (dashboard.uid, dashboard.editable) == (name.removesuffix(".json"), False)


@every
def test_panels_fill_the_grid(name):
    """Panels do not overlap, stay inside the grid, and fill every line."""
    check_grid([panel["gridPos"] for panel in DASHBOARDS[name]["panels"]])
    for row in DASHBOARDS[name]["panels"]:
        if row["type"] == "row" and row["collapsed"]:
            check_grid([row["gridPos"], *(panel["gridPos"] for panel in row["panels"])])


def check_grid(places):
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS for place in places)
    apart = lambda a, b: a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]  # noqa: E731
    assert all(apart(a, b) for a, b in combinations(places, 2))
    lines = Counter()
    for place in places:
        lines[place["y"]] += place["w"]
    assert set(lines.values()) == {COLUMNS}


@every
def test_ids_are_unique(name):
    """Panels have unique ids and titles, and the queries of a panel unique refIds."""
    dashboard = DASHBOARDS[name]
    ids = [each["id"] for panel in dashboard["panels"] for each in (panel, *panel.get("panels", ()))]
    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in panels(dashboard)}) == len(panels(dashboard))
    assert all(
        [target["refId"] for target in panel["targets"]] == list(ascii_uppercase[: len(panel["targets"])]) for panel in panels(dashboard)
    )


@every
def test_every_panel_is_described(name):
    """A panel has a title, a description in sentences, a unit of Grafana, and a text for "no data"."""
    for panel in panels(DASHBOARDS[name]):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["description"] != panel["title"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert defaults["noValue"], panel["title"]
        assert panel["targets"], panel["title"]


@every
def test_tiles_are_readable(name):
    """The title is not truncated on a small screen, and a missing value has a neutral colour."""
    for panel in panels(DASHBOARDS[name]):
        if panel["type"] == "stat":
            assert len(panel["title"]) <= 4 * panel["gridPos"]["w"], panel["title"]
            words = [each["options"] for each in panel["fieldConfig"]["defaults"]["mappings"]]
            assert [(each["match"], each["result"]["color"]) for each in words] == [("null", "text")], panel["title"]


@every
def test_dashboard_is_independent_of_the_site(name):
    """Data sources are variables, no uid, job or cluster is hard-coded, and the variables follow the time range."""
    dashboard = DASHBOARDS[name]
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps([dashboard["panels"], dashboard["templating"]]))
    assert set(sources) == {"${prometheus_datasource}"}
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert {name for name, variable in variables.items() if variable["type"] == "datasource"} == {
        "prometheus_datasource",
        "jaeger_datasource",
    }
    for variable in variables.values():
        if variable["type"] == "query":
            assert (variable["refresh"], variable["multi"], variable["includeAll"]) == (2, True, True)
    assert (variables["job"]["allValue"], variables["instance"]["allValue"]) == (".+", ".+")
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([panel["targets"] for panel in panels(dashboard)])))
    assert used <= set(variables)
    assert set(variables) - used <= {"jaeger_datasource"}


@every
def test_queries_use_existing_metrics(name):
    """Every metric is in the registry and has the labels of the query; every selector is restricted to the chosen job and instance."""
    for panel, target in targets(DASHBOARDS[name]):
        matches = selectors(target["expr"])
        assert matches, panel["title"]
        for metric, matchers in matches:
            assert metric in SERIES, (panel["title"], metric)
            assert (matchers.pop("job"), matchers.pop("instance")) == ("$job", "$instance"), panel["title"]
            assert set(matchers) <= set(SERIES[metric].labels), (panel["title"], metric)
            assert ("task" in SERIES[metric].labels) == ("task" in matchers), (panel["title"], metric)
        bare = re.findall(r"\b((?:checkpoint|ckpt_observe)_\w+)(?!\w|\{)", target["expr"])
        assert bare == [], panel["title"]


@every
def test_counters_and_windows(name):
    """Counters are used only in rate or increase, windows are variables, and rate uses `$__rate_interval`, as Grafana's linter requires."""
    for panel, target in targets(DASHBOARDS[name]):
        expression = target["expr"]
        for metric, _ in selectors(expression):
            if SERIES[metric].instrument != "gauge":
                assert len(re.findall(rf"\b{metric}\{{", expression)) == len(re.findall(rf"(?:rate|increase)\({metric}\{{", expression)), (
                    panel["title"]
                )
        assert set(re.findall(r"\[([^\]]*)\]", expression)) <= WINDOWS, panel["title"]
        assert set(re.findall(r"\brate\([^\[]*\[([^\]]*)\]", expression)) <= {"$__rate_interval"}, panel["title"]


@every
def test_legends_use_labels_of_the_query(name):
    """A legend uses labels that the query keeps, each once; the queries of a panel have different legends."""
    for panel in panels(DASHBOARDS[name]):
        legends = [target["legendFormat"] for target in panel["targets"]]
        if panel["type"] != "table":
            assert len(legends) == len(set(legends)), panel["title"]
        for target in panel["targets"]:
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            query_labels = {label for by in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
            assert len(labels) == len(set(labels)), panel["title"]
            assert set(labels) <= query_labels, panel["title"]


@every
def test_no_graph_has_dozens_of_lines(name):
    """A graph by a label without a closed set shows only the label sets that rank highest at the end of the time range, two rankings at most.

    The sets have all labels of the legend: eight jobs with five outcomes each would be forty lines.
    """
    for panel in panels(DASHBOARDS[name]):
        if panel["type"] in ("timeseries", "state-timeline", "bargauge"):
            rankings = 0
            for target in panel["targets"]:
                labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                ranked = re.findall(rf"(?:on \(([^)]*)\) )?\b(?:topk|bottomk)\({promql.LINES}, ", target["expr"])
                rankings += len(ranked)
                assert ranked or not labels & OPEN_LABELS, panel["title"]
                assert [each for each in ranked if each and set(each.split(", ")) != labels] == [], panel["title"]
            assert rankings <= 2, panel["title"]


@every
def test_colours_have_one_meaning(name):
    """Each value of a closed set that is good or bad has its own colour: ok green, error red, interrupted purple; no error class is green."""
    for panel in panels(DASHBOARDS[name]):
        labels = {label for target in panel["targets"] for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
        fixed = {
            override["matcher"]["options"].removeprefix("/(^| )").removesuffix("$/"): each["value"]["fixedColor"]
            for override in panel["fieldConfig"]["overrides"]
            for each in override["properties"]
            if each["id"] == "color"
        }
        for label, values in (("outcome", OUTCOMES), ("error_class", ERROR_CLASSES), ("reason", metrics.DROP_REASONS)):
            if label in labels:
                assert set(fixed) == set(values), panel["title"]
        expected = {"ok": "green", "error": "red", "interrupted": "purple"}
        assert {key: expected[key] for key in fixed.keys() & expected.keys()} == {key: fixed[key] for key in fixed.keys() & expected.keys()}
        assert {key for key, colour in fixed.items() if "green" in colour} <= {"ok", "live"}, panel["title"]
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())
        assert ("purple" in [step["color"] for step in steps]) == (panel["title"] == "Interrupted"), panel["title"]
    assert set(colours.ERROR_CLASSES) == set(ERROR_CLASSES)


@every
def test_no_text_is_clipped(name):
    """Segments of a timeline, which may be short, have no texts. Titles of columns fit a window of 1,400 pixels, and legends their panels."""
    for panel in panels(DASHBOARDS[name]):
        if panel["type"] == "state-timeline":
            assert panel["options"]["showValue"] == "never"
            [texts] = panel["fieldConfig"]["defaults"]["mappings"]
            assert max(len(each["text"]) for each in texts["options"].values()) <= 14, "too long for the column State of the table"
            assert panel["options"]["legend"]["showLegend"]
        if panel["type"] == "table":
            titles = panel["transformations"][1]["options"]["renameByName"].values()
            assert max(map(len, titles)) * len(titles) <= 7 * panel["gridPos"]["w"], panel["title"]
        if panel["type"] == "timeseries":
            is_beside = panel["options"]["legend"]["placement"] == "right"
            assert is_beside == (panel["gridPos"]["w"] >= COLUMNS // 2), panel["title"]


def test_forecast_is_dashed():
    """A forecast can be told from what was measured: its line is dashed, for every window, and no other line is."""
    dashed = {}
    for dashboard in DASHBOARDS.values():
        for panel in panels(dashboard):
            for override in panel["fieldConfig"]["overrides"]:
                if any(each["id"] == "custom.lineStyle" for each in override["properties"]):
                    dashed[panel["title"]] = override["matcher"]["options"].strip("/"), [each["legendFormat"] for each in panel["targets"]]
    [(title, (series, [measured, forecast]))] = dashed.items()
    assert title == "Free space and forecast"
    name = lambda legend, window: legend.replace("{{job}}", "train in 3").replace("{{instance}}", "host:1").replace("$window", window)  # noqa: E731
    for window in WINDOW_CHOICES:
        assert re.search(series, name(forecast, window))
        assert not re.search(series, name(measured, window))


def test_exemplars_do_not_cover_lines():
    """Only one panel has exemplars. It has the line above them and the median; percentiles and the heatmap are other panels."""
    dotted = [
        (panel["title"], len(panel["targets"]))
        for dashboard in DASHBOARDS.values()
        for panel, each in targets(dashboard)
        if each.get("exemplar")
    ]
    assert dotted == [("Traces by duration", 2)]


def test_rows_that_may_be_empty_are_collapsed():
    """Rows for async and distributed saves and for losses have no data in most programs: they are closed, and their queries do not run."""
    collapsed = {row["title"] for dashboard in DASHBOARDS.values() for row in dashboard["panels"] if row.get("collapsed")}
    assert collapsed == {"Async saves", "Distributed saves: stragglers", "Losses, retries and limits"}


@pytest.mark.parametrize("alert", observability.alerts(Site()), ids=lambda alert: alert.name)
def test_dashboard_of_an_alert_shows_its_cause(alert):
    """What an alert about delivery counts is on the dashboard that it links to, in a row that is open."""
    shown = {
        metric
        for row_or_panel in DASHBOARDS[f"checkpoint-{alert.dashboard}.json"]["panels"]
        for target in row_or_panel.get("targets", ())
        for metric, _ in selectors(target["expr"])
    }
    assert set(re.findall(r"\b(?:checkpoint|ckpt_observe)_\w+", alert.expr)) <= shown


def test_instant_and_range_queries():
    """Tiles, tables and rankings use instant queries, graphs use range queries, and bars have a step that loses no event."""
    for dashboard in DASHBOARDS.values():
        for panel, target in targets(dashboard):
            is_instant = panel["type"] in ("stat", "table", "bargauge")
            assert (target["instant"], target["range"]) == (is_instant, not is_instant), panel["title"]
            if "increase" in target["expr"] and "$__rate_interval" in target["expr"]:
                assert panel["interval"] == "1m", panel["title"]


def test_every_metric_is_shown():
    """Every metric is on a dashboard, except those listed with a reason."""
    shown = {
        SERIES[metric] for dashboard in DASHBOARDS.values() for _, target in targets(dashboard) for metric, _ in selectors(target["expr"])
    }
    assert set(METRICS) - shown == set(UNSHOWN)


@every
def test_table_of_panels(name):
    """The table has every panel with its unit, and the values on record are in their ranges."""
    key = name.removeprefix("checkpoint-").removesuffix(".json")
    expected, values = panel_table.PANELS[key], panel_page.recorded_values()[key]
    units = {panel["title"]: panel_table.units(panel) for panel in panels(DASHBOARDS[name])}
    assert list(expected) == list(units) == list(values)
    assert {title: wrong for title in expected if (wrong := panel_table.problems(expected[title], units[title], values[title]))} == {}


def test_page_has_the_table_of_panels():
    """If not, run: python tests/dashboards/panel_page.py."""
    page = panel_page.PAGE.read_text(encoding="utf-8")
    assert panel_page.render(page) == page


WRONG_VALUES = {
    "unit": ("bytes", {"p50": 0.1, "p95": 1.0}),
    "too high": ("s", {"p50": 0.1, "p95": 100.0}),
    "too low": ("s", {"p50": -0.1, "p95": 1.0}),
    "not a number": ("s", {"p50": float("nan"), "p95": 1.0}),
    "missing series": ("s", {"p50": 0.1}),
    "unknown series": ("s", {"p50": 0.1, "p95": 1.0, "p99": 1.0}),
    "empty": ("s", {}),
}


@pytest.mark.parametrize("wrong", WRONG_VALUES)
def test_value_outside_its_range_is_reported(wrong):
    """Control: each kind of deviation from the table is a problem; a value in its range is none."""
    expected = panel_table.Expectation("s", {"p50": (0, 1), "p95": (1, 10)})
    assert panel_table.problems(expected, "s", {"p50": 0.1, "p95": 1.0}) == []
    assert panel_table.problems(expected, *WRONG_VALUES[wrong])


def _first(change):
    """A change of the first panel that is not a row."""
    return lambda dashboard: change(panels(dashboard)[0])


def _first_graph(change):
    """A change of the first graph."""
    return lambda dashboard: change(next(panel for panel in panels(dashboard) if panel["type"] == "timeseries"))


PLANTED = {
    "newer schema": (test_schema_is_the_classic_one, lambda dashboard: dashboard.update(elements={})),
    "unknown type of panel": (test_schema_is_the_classic_one, _first(lambda panel: panel.update(type="graph"))),
    "wrong type of value": (test_schema_is_the_classic_one, _first(lambda panel: panel["gridPos"].update(x="0"))),
    "misspelt key": (test_schema_is_the_classic_one, _first(lambda panel: panel["fieldConfig"]["defaults"].update(noValues="-"))),
    "overlap": (test_panels_fill_the_grid, _first(lambda panel: panel["gridPos"].update(w=panel["gridPos"]["w"] + 1))),
    "same id": (test_ids_are_unique, _first(lambda panel: panel.update(id=1))),
    "no description": (test_every_panel_is_described, _first(lambda panel: panel.update(description=""))),
    "unknown unit": (test_every_panel_is_described, _first(lambda panel: panel["fieldConfig"]["defaults"].update(unit="bananas"))),
    "truncated title": (test_tiles_are_readable, _first(lambda panel: panel.update(title="A title of more words than fit"))),
    "colour for a missing value": (test_tiles_are_readable, _first(lambda panel: panel["fieldConfig"]["defaults"].update(mappings=[]))),
    "fixed data source": (test_dashboard_is_independent_of_the_site, _first(lambda panel: panel.update(datasource={"uid": "P123"}))),
    "unit that is not in the table": (test_table_of_panels, _first(lambda panel: panel["fieldConfig"]["defaults"].update(unit="bytes"))),
    "unknown metric": (
        test_queries_use_existing_metrics,
        _first(lambda panel: panel["targets"][0].update(expr='checkpoint_ops{job=~"$job", instance=~"$instance"}')),
    ),
    "no job": (test_queries_use_existing_metrics, _first(lambda panel: panel["targets"][0].update(expr="sum(ckpt_observe_build_info)"))),
    "bare counter": (test_counters_and_windows, _first(lambda panel: panel["targets"][0].update(expr=promql.series(metrics.TASKS)))),
    "fixed window": (
        test_counters_and_windows,
        _first(lambda panel: panel["targets"][0].update(expr=f"increase({promql.series(metrics.TASKS)}[5m])")),
    ),
    "line per task": (
        test_no_graph_has_dozens_of_lines,
        _first_graph(lambda panel: panel["targets"][0].update(expr=f"max by (job, task) ({promql.series(metrics.LAST_DURATION)})")),
    ),
    "five lines per job": (
        test_no_graph_has_dozens_of_lines,
        _first_graph(
            lambda panel: panel["targets"][0].update(
                legendFormat="{{job}} · {{outcome}}", expr=promql.highest(promql.increase_per_step(metrics.TASKS, "job, outcome"), "job")
            )
        ),
    ),
    "red success": (
        test_colours_have_one_meaning,
        _first_graph(lambda panel: panel["fieldConfig"].update(overrides=colours.series_colours({"ok": "red"}))),
    ),
    "long title of a column": (
        test_no_text_is_clipped,
        lambda dashboard: [
            panel["transformations"][1]["options"]["renameByName"].update(task="Name of the task")
            for panel in panels(dashboard)
            if panel["type"] == "table"
        ],
    ),
    "text in a short segment": (
        test_no_text_is_clipped,
        lambda dashboard: [panel["options"].update(showValue="auto") for panel in panels(dashboard) if panel["type"] == "state-timeline"],
    ),
    "lost label": (test_legends_use_labels_of_the_query, _first(lambda panel: panel["targets"][0].update(legendFormat="{{phase}}"))),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_mistake_is_detected(fault, monkeypatch):
    """Control: each rule fails on a dashboard that breaks it."""
    rule, plant = PLANTED[fault]
    name = next(iter(DASHBOARDS))
    broken = json.loads(json.dumps(DASHBOARDS[name]))
    plant(broken)
    monkeypatch.setitem(DASHBOARDS, name, broken)
    with pytest.raises((AssertionError, KeyError, msgspec.ValidationError)):
        rule(name)


def test_unknown_label_is_rejected():
    """Control: a misspelt label raises instead of making a panel without data."""
    with pytest.raises(ValueError, match="no label outcomes"):
        promql.series(metrics.OPERATIONS, outcomes="ok")


@pytest.mark.parametrize("kind", ["jaeger", "tempo"])
def test_failure_panels_link_to_traces(kind):
    """Panels of failures and stragglers link to the traces, in the chosen data source, by the attribute of the span."""
    generated = dashboards(kind)
    links = {
        panel["title"]: panel["fieldConfig"]["defaults"]["links"]
        for dashboard in generated.values()
        for panel in panels(dashboard)
        if "links" in panel["fieldConfig"]["defaults"]
    }
    assert set(links) == {"Save state by task", "Saves by outcome", "Errors by class", "Saves with a straggler"}
    url = links["Errors by class"][0]["url"]
    assert f"${{{kind}_datasource}}" in url
    assert "checkpoint.error.class" in url
    assert "${__field.labels.error_class}" in url
    assert not re.search(r'[ "]', url)


def test_dashboards_are_linked():
    """Each dashboard links to all others and keeps the time range and the variables."""
    tags = {tag for dashboard in DASHBOARDS.values() for tag in dashboard["tags"]}
    for dashboard in DASHBOARDS.values():
        [link] = dashboard["links"]
        assert (set(link["tags"]), link["includeVars"], link["keepTime"]) == (tags, True, True)
