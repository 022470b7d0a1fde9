"""The dashboards as files: what Grafana needs, and what its linter and a reader ask for. What they show is in tests/services."""

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
from ckpt_observe.dashboards.layouts import COLUMNS
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
    metrics.LAST_ATTEMPT: "with a last success it tells nothing more; without one the first attempt does",
    metrics.CPU_TIME: "shown by phase",
    metrics.LAST_FAILURE: "for alerts on rare events; dashboards count the operations themselves",
    metrics.ALTERED_KEYS: "an alert tells it, and the span names the keys",
    metrics.LAST_ALTERED: "for the alert on it",
}
"""Metrics that no dashboard shows, and why."""


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets(dashboard):
    return [(panel, target) for panel in panels(dashboard) for target in panel["targets"]]


def selectors(expression):
    """Every metric that an expression asks for, with its matchers."""
    return [(name, dict(re.findall(r'(\w+)=~"([^"]*)"', matchers))) for name, matchers in re.findall(r"\b(\w+)\{([^{}]*)\}", expression)]


def test_committed_files_are_what_the_code_makes(capsys):
    """A change of the code that was not written to the files is found, with the command that writes them."""
    assert main(["dashboards", "--check", str(COMMITTED)]) == 0
    assert sorted(path.name for path in COMMITTED.iterdir()) == sorted(DASHBOARDS)


def test_check_finds_what_differs(tmp_path, capsys):
    """Control: a file that was edited and one that is missing are named; after `--out` all is well."""
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    (tmp_path / "checkpoint-bridge.json").unlink()
    (tmp_path / "checkpoint-storage.json").write_bytes(b"\xff")
    assert main(["dashboards", "--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "checkpoint-bridge.json" in told
    assert "checkpoint-storage.json" in told
    assert "checkpoint-overview.json" not in told
    assert main(["dashboards", "--out", str(tmp_path)]) == main(["dashboards", "--check", str(tmp_path)]) == 0


def test_directory_that_cannot_be_written_is_told(tmp_path, capsys):
    """One clean line, and the exit code of a failure."""
    (tmp_path / "file").write_text("")
    assert main(["dashboards", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@every
def test_it_is_the_classic_form(name):
    """File provisioning refuses the newer schema, and files of the share dialog; what else is wrong Grafana ignores in silence."""
    assert msgspec.convert(DASHBOARDS[name], dashboard_schema.Dashboard).uid == name.removesuffix(".json")


@every
def test_panels_lie_side_by_side(name):
    """No two overlap, none leaves the grid, and no line has a hole at its end."""
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
    """Panels by id and title, queries of a panel by refId."""
    dashboard = DASHBOARDS[name]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len({panel["title"] for panel in panels(dashboard)}) == len(panels(dashboard))
    assert all(
        [target["refId"] for target in panel["targets"]] == list("ABCDEFGHIJ"[: len(panel["targets"])]) for panel in panels(dashboard)
    )


@every
def test_every_panel_explains_itself(name):
    """A title, sentences, a unit that Grafana knows, and words for when there is nothing."""
    for panel in panels(DASHBOARDS[name]):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["description"] != panel["title"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert defaults["noValue"], panel["title"]
        assert panel["targets"], panel["title"]


@every
def test_tiles_are_read_at_a_glance(name):
    """A title is not cut on a small screen, and where there is no value, no colour says that it is good or bad."""
    for panel in panels(DASHBOARDS[name]):
        if panel["type"] == "stat":
            assert len(panel["title"]) <= 4 * panel["gridPos"]["w"], panel["title"]
            words = [each["options"] for each in panel["fieldConfig"]["defaults"]["mappings"]]
            assert [(each["match"], each["result"]["color"]) for each in words] == [("null", "text")], panel["title"]


@every
def test_nothing_of_a_site_is_in_it(name):
    """Data sources are chosen by variables; no uid, job or cluster is written down; the variables follow the time shown."""
    dashboard = DASHBOARDS[name]
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps([dashboard["panels"], dashboard["templating"]]))
    assert set(sources) == {"${prometheus_datasource}"}
    chosen = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert {name for name, variable in chosen.items() if variable["type"] == "datasource"} == {"prometheus_datasource", "jaeger_datasource"}
    for variable in chosen.values():
        if variable["type"] == "query":
            assert (variable["refresh"], variable["multi"], variable["includeAll"]) == (2, True, True)
    assert (chosen["job"]["allValue"], chosen["instance"]["allValue"]) == (".+", ".+")
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([panel["targets"] for panel in panels(dashboard)])))
    assert used <= set(chosen)
    assert set(chosen) - used <= {"jaeger_datasource"}


@every
def test_queries_ask_for_what_there_is(name):
    """Every metric is in the registry and has the labels that are asked for; every one is narrowed to the chosen job and instance."""
    for panel, target in targets(DASHBOARDS[name]):
        found = selectors(target["expr"])
        assert found, panel["title"]
        for metric, matchers in found:
            assert metric in SERIES, (panel["title"], metric)
            assert (matchers.pop("job"), matchers.pop("instance")) == ("$job", "$instance"), panel["title"]
            assert set(matchers) <= set(SERIES[metric].labels), (panel["title"], metric)
            assert ("task" in SERIES[metric].labels) == ("task" in matchers), (panel["title"], metric)
        bare = re.findall(r"\b((?:checkpoint|ckpt_observe)_\w+)(?!\w|\{)", target["expr"])
        assert bare == [], panel["title"]


@every
def test_counters_and_windows(name):
    """Counters only as a rate or an increase; windows that follow the time shown; a rate only over Grafana's own interval, as its linter wants."""
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
def test_legends_use_labels_that_are_left(name):
    """A label of a legend is one that the query keeps, once; queries of one panel have legends of their own."""
    for panel in panels(DASHBOARDS[name]):
        legends = [target["legendFormat"] for target in panel["targets"]]
        if panel["type"] != "table":
            assert len(legends) == len(set(legends)), panel["title"]
        for target in panel["targets"]:
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            kept = {label for by in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
            assert len(labels) == len(set(labels)), panel["title"]
            assert set(labels) <= kept, panel["title"]


def test_instant_panels_ask_once():
    """A tile, a table or a ranking asks for now; a graph for the time shown, and bars in steps that lose no event."""
    for dashboard in DASHBOARDS.values():
        for panel, target in targets(dashboard):
            once = panel["type"] in ("stat", "table", "bargauge")
            assert (target["instant"], target["range"]) == (once, not once), panel["title"]
            if "increase" in target["expr"] and "$__rate_interval" in target["expr"]:
                assert panel["interval"] == "1m", panel["title"]


def test_every_metric_is_shown():
    """A metric on no dashboard is one that nobody sees; those have a reason."""
    shown = {
        SERIES[metric] for dashboard in DASHBOARDS.values() for _, target in targets(dashboard) for metric, _ in selectors(target["expr"])
    }
    assert set(METRICS) - shown == set(UNSHOWN)


def _first(change):
    """A change of the first panel that shows something, or of its first query."""
    return lambda dashboard: change(panels(dashboard)[0])


PLANTED = {
    "newer schema": (test_it_is_the_classic_form, lambda dashboard: dashboard.update(elements={})),
    "unknown type of panel": (test_it_is_the_classic_form, _first(lambda panel: panel.update(type="graph"))),
    "wrong type of value": (test_it_is_the_classic_form, _first(lambda panel: panel["gridPos"].update(x="0"))),
    "misspelt key": (test_it_is_the_classic_form, _first(lambda panel: panel["fieldConfig"]["defaults"].update(noValues="-"))),
    "overlap": (test_panels_lie_side_by_side, _first(lambda panel: panel["gridPos"].update(w=panel["gridPos"]["w"] + 1))),
    "same id": (test_ids_are_unique, _first(lambda panel: panel.update(id=1))),
    "no description": (test_every_panel_explains_itself, _first(lambda panel: panel.update(description=""))),
    "unknown unit": (test_every_panel_explains_itself, _first(lambda panel: panel["fieldConfig"]["defaults"].update(unit="bananas"))),
    "title that is cut": (test_tiles_are_read_at_a_glance, _first(lambda panel: panel.update(title="A title of many words"))),
    "colour for nothing": (test_tiles_are_read_at_a_glance, _first(lambda panel: panel["fieldConfig"]["defaults"].update(mappings=[]))),
    "fixed data source": (test_nothing_of_a_site_is_in_it, _first(lambda panel: panel.update(datasource={"uid": "P123"}))),
    "unknown metric": (
        test_queries_ask_for_what_there_is,
        _first(lambda panel: panel["targets"][0].update(expr='checkpoint_ops{job=~"$job", instance=~"$instance"}')),
    ),
    "no job": (test_queries_ask_for_what_there_is, _first(lambda panel: panel["targets"][0].update(expr="sum(ckpt_observe_build_info)"))),
    "bare counter": (test_counters_and_windows, _first(lambda panel: panel["targets"][0].update(expr=queries.series(metrics.TASKS)))),
    "fixed window": (
        test_counters_and_windows,
        _first(lambda panel: panel["targets"][0].update(expr=f"increase({queries.series(metrics.TASKS)}[5m])")),
    ),
    "lost label": (test_legends_use_labels_that_are_left, _first(lambda panel: panel["targets"][0].update(legendFormat="{{phase}}"))),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(fault, monkeypatch):
    """Control: each rule fails on a dashboard that breaks it."""
    rule, plant = PLANTED[fault]
    name = next(iter(DASHBOARDS))
    broken = json.loads(json.dumps(DASHBOARDS[name]))
    plant(broken)
    monkeypatch.setitem(DASHBOARDS, name, broken)
    with pytest.raises((AssertionError, KeyError, msgspec.ValidationError)):
        rule(name)


def test_label_that_a_metric_has_not_is_refused():
    """Control: a misspelt label does not become a panel without data."""
    with pytest.raises(ValueError, match="no label outcomes"):
        queries.series(metrics.OPERATIONS, outcomes="ok")


@pytest.mark.parametrize("kind", ["jaeger", "tempo"])
def test_failures_lead_to_traces(kind):
    """Panels of failures have a link to their traces, in the data source that was chosen, by the name that the span has."""
    made = dashboards(kind)
    links = {
        panel["title"]: panel["fieldConfig"]["defaults"]["links"]
        for dashboard in made.values()
        for panel in panels(dashboard)
        if "links" in panel["fieldConfig"]["defaults"]
    }
    assert set(links) == {"State of saves", "Saves by outcome", "Errors by class"}
    url = links["Errors by class"][0]["url"]
    assert f"${{{kind}_datasource}}" in url
    assert "checkpoint.error.class" in url
    assert "${__field.labels.error_class}" in url
    assert not re.search(r'[ "]', url)


def test_dashboards_are_linked():
    """From each to all others, with time and choices kept."""
    tags = {tag for dashboard in DASHBOARDS.values() for tag in dashboard["tags"]}
    for dashboard in DASHBOARDS.values():
        [link] = dashboard["links"]
        assert (set(link["tags"]), link["includeVars"], link["keepTime"]) == (tags, True, True)
