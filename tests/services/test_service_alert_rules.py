"""The rules and the routing, checked with the tools of Prometheus and Alertmanager."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import alert_cases
import healthy_tasks
import pytest
from processes import program

from ckpt_observe.alerts.rule_files import ROUTING, RULES, RUNBOOK, all_alerts, files
from ckpt_observe.alerts.site import DAY, HOUR, MINUTE, Site

pytestmark = pytest.mark.services

CADENCES = (MINUTE, 10 * MINUTE, 30 * MINUTE, 6 * HOUR, DAY)


def tool(name, *words):
    done = subprocess.run([program(name), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def write_files(directory, site):
    for name, text in files(site).items():
        (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize("site", [*map(Site, CADENCES), Site(slo=0.5), Site(slo=0.9999), Site(interval=2), Site(batch=True)], ids=str)
def test_rules_are_understood(site, tmp_path):
    """promtool accepts the rules of every site, and amtool the routing."""
    write_files(tmp_path, site)
    code, output = tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / RULES)
    assert code == 0, output
    assert f"{len(all_alerts(site))} rules found" in output
    code, output = tool("amtool", "check-config", tmp_path / ROUTING)
    assert code == 0, output


def test_all_alerts_has_cases_of_both_kinds():
    """Each alert has a case in which it fires and a case in which it is silent."""
    for name in {alert.name for alert in all_alerts(Site())} - {"CheckpointWatchdog"}:
        outcomes = [fires for case in alert_cases.CASES if case.alert == name for fires in case.expected.values()]
        assert None in outcomes, name
        assert any(outcomes), name


def test_committed_cases_are_these():
    """If not, run: python tests/services/alert_cases.py."""
    expected = alert_cases.committed()
    assert {path.name for path in alert_cases.COMMITTED.glob("tests-*")} == set(expected)
    assert [name for name, text in expected.items() if (alert_cases.COMMITTED / name).read_text(encoding="utf-8") != text] == []


@pytest.mark.parametrize(("interval", "tick"), alert_cases.KINDS)
def test_alert_fires_and_stays_silent(interval, tick, tmp_path):
    """Each alert fires with the expected description, is silent just below its threshold, and silent without data."""
    write_files(tmp_path, Site(interval, **alert_cases.STACK))
    (tmp_path / "tests.yml").write_text(json.dumps(alert_cases.suite(interval, tick, RULES)))
    code, output = tool("promtool", "test", "rules", tmp_path / "tests.yml")
    assert code == 0, output


def fired(directory, site, tasks, days, tick):
    """The verdict of promtool on the claim that only the watchdog ever fired."""
    directory.mkdir()
    write_files(directory, site)
    ever = 'group by (alertname) (count_over_time(ALERTS{alertstate="firing"}[31d]))'
    check = {"expr": ever, "eval_time": f"{int(days * 1440)}m", "exp_samples": [{"labels": '{alertname="CheckpointWatchdog"}', "value": 1}]}
    every = f"{int(tick)}s"
    test = {"interval": every, "input_series": healthy_tasks.scraped_series(tasks, days, tick), "promql_expr_test": [check]}
    (directory / "tests.yml").write_text(json.dumps({"rule_files": [RULES], "evaluation_interval": every, "tests": [test]}))
    return tool("promtool", "test", "rules", directory / "tests.yml")


SITES = {
    "1 min": (Site(MINUTE), (MINUTE,), 30, HOUR),
    "1 min, closely": (Site(MINUTE), (MINUTE,), 0.25, MINUTE),
    "10 min": (Site(10 * MINUTE), (10 * MINUTE,), 30, HOUR),
    "10 min, closely": (Site(10 * MINUTE), (10 * MINUTE,), 3, 10 * MINUTE),
    "30 min": (Site(30 * MINUTE), (30 * MINUTE,), 30, HOUR),
    "6 h": (Site(6 * HOUR), (6 * HOUR,), 30, HOUR),
    "1 day": (Site(DAY), (DAY,), 30, HOUR),
    "all of them, default rules": (Site(), CADENCES, 30, HOUR),
}
"""Rules, save intervals of the tasks, days, and seconds between two scrapes and evaluations (each takes promtool a few milliseconds)."""


def test_a_healthy_month_is_silent(tmp_path):
    """Thirty days of regular saves at each interval, with jitter, single failures, pauses and new runs: nothing fires.
    Control: the same check notices a task that runs and does not save for three days."""

    def judged(name):
        site, cadences, days, tick = SITES[name]
        return name, fired(tmp_path / name, site, [healthy_tasks.Task(f"every-{cadence:g}", cadence) for cadence in cadences], days, tick)

    with ThreadPoolExecutor(2) as pool:
        verdicts = dict(pool.map(judged, SITES))
    assert {name: output for name, (code, output) in verdicts.items() if code} == {}
    hung = healthy_tasks.Task("hung", 30 * MINUTE, hang=(3 * DAY, 6 * DAY))
    code, output = fired(tmp_path / "hung", Site(), [hung], 7, HOUR)
    assert code == 1
    assert 'alertname="CheckpointStale"' in output


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.*?)```", files(Site())[RUNBOOK], re.DOTALL))
def test_query_of_the_runbook_is_understood(prometheus, query):
    """Prometheus accepts the first query of each runbook entry."""
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
def test_receivers(labels, receiver, tmp_path):
    """Critical alerts page, the watchdog goes to the dead man's switch, everything else is a ticket."""
    write_files(tmp_path, Site())
    words = [f"{name}={value}" for name, value in labels.items()]
    code, output = tool(
        "amtool", "config", "routes", "test", f"--config.file={tmp_path / ROUTING}", f"--verify.receivers={receiver}", *words
    )
    assert code == 0, output
