"""The rules and the routing as Prometheus' and Alertmanager's own tools judge them: understood, firing when they should, silent when all is well."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import alert_cases
import healthy
import pytest
from processes import program

from ckpt_observe.alerts.files import ROUTING, RULES, RUNBOOK, files
from ckpt_observe.alerts.plan import DAY, HOUR, MINUTE, Plan
from ckpt_observe.alerts.rules import every_alert

pytestmark = pytest.mark.services

CADENCES = (MINUTE, 10 * MINUTE, 30 * MINUTE, 6 * HOUR, DAY)


def tool(name, *words):
    done = subprocess.run([program(name), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def written(directory, plan):
    for name, text in files(plan).items():
        (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize("plan", [*map(Plan, CADENCES), Plan(slo=0.5), Plan(slo=0.9999), Plan(interval=2), Plan(batch=True)], ids=str)
def test_rules_are_understood(plan, tmp_path):
    """N7: promtool finds nothing wrong with the rules of any site, nor amtool with the routing."""
    written(tmp_path, plan)
    code, said = tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / RULES)
    assert code == 0, said
    assert f"{len(every_alert(plan))} rules found" in said
    code, said = tool("amtool", "check-config", tmp_path / ROUTING)
    assert code == 0, said


def test_every_alert_has_cases_of_both_kinds():
    """Each is shown firing and, at another moment or with other data, silent."""
    for name in {alert.name for alert in every_alert(Plan())} - {"CheckpointWatchdog"}:
        found = [fires for case in alert_cases.CASES if case.alert == name for fires in case.expected.values()]
        assert None in found, name
        assert any(found), name


def test_committed_cases_are_these():
    """Else: python tests/services/alert_cases.py."""
    made = alert_cases.committed()
    assert {path.name for path in alert_cases.COMMITTED.glob("tests-*")} == set(made)
    assert [name for name, text in made.items() if (alert_cases.COMMITTED / name).read_text(encoding="utf-8") != text] == []


@pytest.mark.parametrize(("interval", "tick"), alert_cases.KINDS)
def test_alert_fires_and_stays_silent(interval, tick, tmp_path):
    """N7: each alert fires when it should and says what it should, is silent just under it, and silent where there are no data."""
    written(tmp_path, Plan(interval))
    (tmp_path / "tests.yml").write_text(json.dumps(alert_cases.suite(interval, tick, RULES)))
    code, said = tool("promtool", "test", "rules", tmp_path / "tests.yml")
    assert code == 0, said


def fired(directory, plan, tasks, days, tick):
    """What promtool says of: nothing but the watchdog ever fired."""
    directory.mkdir()
    written(directory, plan)
    ever = 'group by (alertname) (count_over_time(ALERTS{alertstate="firing"}[31d]))'
    check = {"expr": ever, "eval_time": f"{int(days * 1440)}m", "exp_samples": [{"labels": '{alertname="CheckpointWatchdog"}', "value": 1}]}
    every = f"{int(tick)}s"
    test = {"interval": every, "input_series": healthy.scraped(tasks, days, tick), "promql_expr_test": [check]}
    (directory / "tests.yml").write_text(json.dumps({"rule_files": [RULES], "evaluation_interval": every, "tests": [test]}))
    return tool("promtool", "test", "rules", directory / "tests.yml")


SITES = {
    "1 min": (Plan(MINUTE), (MINUTE,), 30, HOUR),
    "1 min, closely": (Plan(MINUTE), (MINUTE,), 0.25, MINUTE),
    "10 min": (Plan(10 * MINUTE), (10 * MINUTE,), 30, HOUR),
    "10 min, closely": (Plan(10 * MINUTE), (10 * MINUTE,), 3, 10 * MINUTE),
    "30 min": (Plan(30 * MINUTE), (30 * MINUTE,), 30, HOUR),
    "6 h": (Plan(6 * HOUR), (6 * HOUR,), 30, HOUR),
    "1 day": (Plan(DAY), (DAY,), 30, HOUR),
    "all of them, default rules": (Plan(), CADENCES, 30, HOUR),
}
"""Rules, cadences of the tasks, days, and seconds between two scrapes and evaluations: promtool takes a few milliseconds for each."""


def test_a_healthy_month_is_silent(tmp_path):
    """N7: thirty days of runs that save as they should, at each cadence, with jitter, a lone failure, pauses and new runs: nothing fires.
    And the control: a task that runs and does not save for three days is noticed by the same check."""

    def judged(name):
        plan, cadences, days, tick = SITES[name]
        return name, fired(tmp_path / name, plan, [healthy.Task(f"every-{cadence:g}", cadence) for cadence in cadences], days, tick)

    with ThreadPoolExecutor(2) as pool:
        verdicts = dict(pool.map(judged, SITES))
    assert {name: said for name, (code, said) in verdicts.items() if code} == {}
    hung = healthy.Task("hung", 30 * MINUTE, hang=(3 * DAY, 6 * DAY))
    code, said = fired(tmp_path / "hung", Plan(), [hung], 7, HOUR)
    assert code == 1
    assert 'alertname="CheckpointStale"' in said


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.*?)```", files(Plan())[RUNBOOK], re.DOTALL))
def test_query_of_the_runbook_is_understood(prometheus, query):
    """What the runbook tells to ask first, Prometheus can answer."""
    try:
        prometheus.query(query.replace("$task", "train"))
    except urllib.error.HTTPError as refusal:
        pytest.fail(refusal.read().decode())


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "CheckpointStale", "severity": "critical", "task": "train"}, "page"),
        ({"alertname": "CheckpointSlow", "severity": "warning", "task": "train"}, "ticket"),
        ({"alertname": "CheckpointWatchdog", "severity": "none"}, "deadman"),
        ({"alertname": "SomebodyElses"}, "ticket"),
    ],
)
def test_who_is_told(labels, receiver, tmp_path):
    """Critical pages, the watchdog goes to the dead man's switch, all else is a ticket."""
    written(tmp_path, Plan())
    words = [f"{name}={value}" for name, value in labels.items()]
    code, said = tool("amtool", "config", "routes", "test", f"--config.file={tmp_path / ROUTING}", f"--verify.receivers={receiver}", *words)
    assert code == 0, said
