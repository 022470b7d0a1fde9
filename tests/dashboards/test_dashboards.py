"""The dashboards as files: valid for Grafana, and readable. Tests of what they show are in tests/services."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import dashboard_schema
import msgspec
import pytest

from ckpt_observe.cli.main import main
from ckpt_observe.dashboards import dashboards, queries
from ckpt_observe.dashboards.layout import COLUMNS
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import METRICS

COMMITTED = Path(__file__).parents[2] / "dashboards" / "grafana"
DASHBOARDS = dashboards()
every = pytest.mark.parametrize("name", DASHBOARDS)

SERIES = {
    f"{spec.prometheus_name}{part}": spec
    for spec in METRICS
    for part in (("_bucket", "_sum", "_count") if spec.instrument == "histogram" else ("",))
}
UNITS = {"none", "locale", "percentunit", "bytes", "Bps", "s", "cps"}
WINDOWS = {"$__rate_interval", "$__range", "$window"}
UNSHOWN = {
    metrics.LAST_ATTEMPT: "adds nothing to the last success, or to the first attempt if there is none",
    metrics.CPU_TIME: "shown by phase",
    metrics.DRILL_AGE: "dashboards show the age of the last save at any time, not only during a drill",
    metrics.LAST_FAILURE: "for alerts on rare events; dashboards count the operations",
    metrics.ALTERED_KEYS: "an alert reports it, and the span names the keys",
    metrics.LAST_ALTERED: "for the alert",
}
"""Metrics that no dashboard shows, and why."""


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


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
    places = [panel["gridPos"] for panel in DASHBOARDS[name]["panels"]]
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
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len({panel["title"] for panel in panels(dashboard)}) == len(panels(dashboard))
    assert all(
        [target["refId"] for target in panel["targets"]] == list("ABCDEFGHIJ"[: len(panel["targets"])]) for panel in panels(dashboard)
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


def _first(change):
    """A change of the first panel that is not a row."""
    return lambda dashboard: change(panels(dashboard)[0])


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
    "unknown metric": (
        test_queries_use_existing_metrics,
        _first(lambda panel: panel["targets"][0].update(expr='checkpoint_ops{job=~"$job", instance=~"$instance"}')),
    ),
    "no job": (test_queries_use_existing_metrics, _first(lambda panel: panel["targets"][0].update(expr="sum(ckpt_observe_build_info)"))),
    "bare counter": (test_counters_and_windows, _first(lambda panel: panel["targets"][0].update(expr=queries.series(metrics.TASKS)))),
    "fixed window": (
        test_counters_and_windows,
        _first(lambda panel: panel["targets"][0].update(expr=f"increase({queries.series(metrics.TASKS)}[5m])")),
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
        queries.series(metrics.OPERATIONS, outcomes="ok")


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
