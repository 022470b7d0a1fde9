"""Test cases for promtool: when each alert fires, with which description, and when it stays silent.

`python tests/services/alert_cases.py` writes the cases for the default rules to dashboards/alerts, so that users can run them.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import NamedTuple

from ckpt_observe.alerts.rule_files import RULES, rules
from ckpt_observe.alerts.site import Site
from ckpt_observe.semconv import metrics
from ckpt_observe.support import yaml

COMMITTED = Path(__file__).parents[2] / "dashboards" / "alerts"
STACK = {"grafana_url": "http://127.0.0.1:3000", "jaeger_url": "http://127.0.0.1:16686"}
"""Addresses of docker-compose.yml. The committed rules link to them."""
DEFAULT, DENSE = Site(**STACK), Site(interval=60, **STACK)
FROM = {"instance": "host:9464", "job": "trainer"}
WHO = "task train on host:9464"


class Fires(NamedTuple):
    """A firing alert: its description, and its labels beyond those of the series."""

    says: str
    labels: dict = {}  # noqa: RUF012 - never changed
    severity: str = "critical"


class Case(NamedTuple):
    title: str
    alert: str
    input_series: tuple
    expected: dict
    """What fires at each minute: a `Fires`, several, or None."""
    site: Site = DEFAULT
    tick: int = 1
    """Minutes between two samples and two evaluations. The run time of promtool grows with their number."""


def of(spec, values, part="", **labels):
    """A series of the task in promtool's notation; it keeps its last value."""
    all_labels = {**labels, **({"task": "train"} if "task" in spec.labels else {})}
    return {"series": series(spec, part, all_labels), "values": str(values)}


def series(spec, part, labels):
    text = ", ".join(f'{name}="{value}"' for name, value in sorted({**FROM, **labels}.items()))
    return f"{spec.prometheus_name}{part}{{{text}}}"


def save(spec, values, **labels):
    return of(spec, values, operation="save", **labels)


def counter(first, *ticks):
    """A counter that starts at `first` and increases by one at these ticks."""
    parts, at, value = [], 0, first
    for tick in ticks:
        parts.append(f"{value}x{tick - at - 1}")
        at, value = tick, value + 1
    return " ".join([*parts, f"{value}"])


def saves(ok, failed):
    """Counters of saves that succeeded and failed at these ticks."""
    return (
        save(metrics.OPERATIONS, counter(1000, *ok), outcome="ok", error_class=""),
        save(metrics.OPERATIONS, counter(1000, *failed), outcome="error", error_class="storage"),
    )


def every(ticks, end, without=()):
    return [tick for tick in range(ticks, end, ticks) if tick not in without]


def took(normal, then, since=288, until=330):
    """Saves every three ticks that took `normal` seconds, and `then` seconds from the tick `since` on."""
    spent, times = 1000.0, []
    for tick in range(3, until, 3):
        times.append(f"{spent:g}x2")
        spent += normal if tick < since else then
    spec = metrics.OPERATION_DURATION
    return (save(spec, " ".join([*times, f"{spent:g}"]), part="_sum"), save(spec, counter(1000, *range(3, until, 3)), part="_count"))


SAVE = {"operation": "save"}
TRIED = save(metrics.LAST_ATTEMPT, 60)
RUNNING = of(metrics.TASKS_OLDEST_START, 0)
DAMAGE = of(metrics.LAST_FAILURE, 600, operation="verify", error_class="integrity")
ALTERED = of(metrics.LAST_ALTERED, 600, operation="restore")
VERIFY, RESTORE = {"operation": "verify"}, {"operation": "restore"}
DAMAGE_FOUND = Fires(f"A verify of {WHO} found a damaged checkpoint at 1970-01-01 00:10:00 +0000 UTC.", VERIFY)
CHANGED = Fires(f"A restore of {WHO} returned a state with missing keys or keys of another type at 1970-01-01 00:10:00 +0000 UTC.", RESTORE)
CUT = Fires(f"A process died during a save of {WHO}; detected at 1970-01-01 00:01:00 +0000 UTC.", SAVE, "warning")
LATE = of(metrics.EXPECTED_INTERVAL, 1800)

CASES = (
    Case(
        "attempted for longer than an interval without success",
        "CheckpointNeverSucceeded",
        (save(metrics.FIRST_ATTEMPT, 60), TRIED),
        {31: None, 32: Fires(f"Saves of {WHO} have been attempted for 31m 0s; none has succeeded.", SAVE)},
    ),
    Case(
        "a task that declared an interval of a minute, under rules for 30 minutes",
        "CheckpointNeverSucceeded",
        (save(metrics.FIRST_ATTEMPT, 60), TRIED, of(metrics.EXPECTED_INTERVAL, 60)),
        {2: None, 3: Fires(f"Saves of {WHO} have been attempted for 2m 0s; none has succeeded.", SAVE)},
    ),
    Case(
        "a task that declared an interval of two days: not abandoned after two days, and not late before",
        "CheckpointNeverSucceeded",
        (save(metrics.FIRST_ATTEMPT, 60), TRIED, of(metrics.EXPECTED_INTERVAL, 172800)),
        {60: None, 2880: None, 2940: Fires(f"Saves of {WHO} have been attempted for 2d 0h 59m 0s; none has succeeded.", SAVE)},
        tick=60,
    ),
    Case("abandoned two days ago", "CheckpointNeverSucceeded", (save(metrics.FIRST_ATTEMPT, 60), TRIED), {2940: None}, tick=60),
    Case(
        "one success, long ago",
        "CheckpointNeverSucceeded",
        (save(metrics.FIRST_ATTEMPT, 60), TRIED, save(metrics.LAST_SUCCESS, 70)),
        {60: None},
    ),
    Case(
        "three consecutive failures",
        "CheckpointFailing",
        (save(metrics.CONSECUTIVE_FAILURES, 3), TRIED),
        {5: Fires(f"The last 3 saves of {WHO} failed.", SAVE)},
    ),
    Case(
        "three consecutive failures, abandoned two days ago",
        "CheckpointFailing",
        (save(metrics.CONSECUTIVE_FAILURES, 3), TRIED),
        {2940: None},
        tick=60,
    ),
    Case("two consecutive failures", "CheckpointFailing", (save(metrics.CONSECUTIVE_FAILURES, 2), TRIED), {5: None}),
    Case("three failed loads", "CheckpointFailing", (of(metrics.CONSECUTIVE_FAILURES, 3, operation="load"), TRIED), {5: None}),
    Case(
        "two and a half intervals and five minutes since the last save",
        "CheckpointStale",
        (RUNNING, LATE, save(metrics.LAST_SUCCESS, 600)),
        {85: None, 86: None, 87: Fires(f"If {WHO} died now, 1h 17m 0s of work would be lost.")},
    ),
    Case(
        "a run that declared an interval and has never saved",
        "CheckpointStale",
        (RUNNING, LATE),
        {76: None, 77: Fires(f"If {WHO} died now, 1h 17m 0s of work would be lost.")},
    ),
    Case("no task is running", "CheckpointStale", (LATE, save(metrics.LAST_SUCCESS, 600)), {120: None}),
    Case(
        "a new run whose previous run ended yesterday",
        "CheckpointStale",
        (of(metrics.TASKS_OLDEST_START, 86400), LATE, save(metrics.LAST_SUCCESS, 600)),
        {1450: None, 1500: None},
        tick=10,
    ),
    Case(
        "a task that saves every minute, under rules for 30 minutes",
        "CheckpointStale",
        (RUNNING, of(metrics.EXPECTED_INTERVAL, 60), save(metrics.LAST_SUCCESS, 60)),
        {4: None, 5: Fires(f"If {WHO} died now, 4m 0s of work would be lost.")},
    ),
    Case(
        "a task that saves every ten seconds, under rules for 30 minutes",
        "CheckpointStale",
        (RUNNING, of(metrics.EXPECTED_INTERVAL, 10), save(metrics.LAST_SUCCESS, 60)),
        {2: None, 3: Fires(f"If {WHO} died now, 2m 0s of work would be lost.")},
    ),
    Case(
        "a task that saves once a day, under rules for 30 minutes",
        "CheckpointStale",
        (RUNNING, of(metrics.EXPECTED_INTERVAL, 86400), save(metrics.LAST_SUCCESS, 3600)),
        {3720: None, 3780: Fires(f"If {WHO} died now, 2d 14h 0m 0s of work would be lost.")},
        tick=60,
    ),
    Case(
        "a task that saves every ten seconds and whose metrics arrive every four minutes",
        "CheckpointStale",
        (
            RUNNING,
            of(metrics.EXPECTED_INTERVAL, "10 _x3 " * 10),
            save(metrics.LAST_SUCCESS, " ".join(f"{240 * push - 9} _x3" for push in range(10))),
        ),
        {30: None},
    ),
    Case("no known interval", "CheckpointStale", (RUNNING, save(metrics.LAST_SUCCESS, 60)), {120: None}),
    Case(
        "three of twelve saves failed, not consecutively",
        "CheckpointFailureRatio",
        saves(every(3, 42, (9, 21, 33)), (9, 21, 33)),
        {320: None, 410: Fires(f"27.27% of the saves of {WHO} failed in the last 6h.", SAVE, "warning"), 500: None},
        tick=10,
    ),
    Case("two of twelve saves failed", "CheckpointFailureRatio", saves(every(3, 42, (9, 33)), (9, 33)), {410: None}, tick=10),
    Case("three of forty saves failed", "CheckpointFailureRatio", saves(every(1, 42, (9, 21, 33)), (9, 21, 33)), {410: None}, tick=10),
    Case(
        "three failures in a day, one of them recent",
        "CheckpointErrorBudgetBurn",
        saves(every(3, 144, (30, 90, 141)), (30, 90, 141)),
        {
            1400: None,
            1430: (
                Fires(f"6.383% of the saves of {WHO} failed in the last 1d; the objective allows 1%.", {**SAVE, "window": "1d"}, "warning"),
                Fires(f"6.383% of the saves of {WHO} failed in the last 3d; the objective allows 1%.", {**SAVE, "window": "3d"}, "warning"),
            ),
        },
        tick=10,
    ),
    Case("two failures in a day", "CheckpointErrorBudgetBurn", saves(every(3, 144, (90, 141)), (90, 141)), {1430: None}, tick=10),
    Case(
        "three failures in a day, none of them recent",
        "CheckpointErrorBudgetBurn",
        saves(every(3, 144, (30, 33, 36)), (30, 33, 36)),
        {1430: None},
        tick=10,
    ),
    Case(
        "one save per minute, a fifth of them failing: the short window fires too",
        "CheckpointErrorBudgetBurn",
        saves(every(1, 120, range(60, 120, 5)), range(60, 120, 5)),
        {
            70: (
                Fires(f"4.286% of the saves of {WHO} failed in the last 1d; the objective allows 1%.", {**SAVE, "window": "1d"}, "warning"),
                Fires(f"4.286% of the saves of {WHO} failed in the last 3d; the objective allows 1%.", {**SAVE, "window": "3d"}, "warning"),
            ),
            118: (
                Fires(f"20.34% of the saves of {WHO} failed in the last 1h; the objective allows 1%.", {**SAVE, "window": "1h"}),
                Fires(f"10.17% of the saves of {WHO} failed in the last 6h; the objective allows 1%.", {**SAVE, "window": "6h"}),
                Fires(f"10.17% of the saves of {WHO} failed in the last 1d; the objective allows 1%.", {**SAVE, "window": "1d"}, "warning"),
                Fires(f"10.17% of the saves of {WHO} failed in the last 3d; the objective allows 1%.", {**SAVE, "window": "3d"}, "warning"),
            ),
        },
        DENSE,
    ),
    Case("one save per minute, one failure", "CheckpointErrorBudgetBurn", saves(every(1, 120, (118,)), (118,)), {119: None}, DENSE),
    Case(
        "a save that takes ten times as long as the longest before",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60), save(metrics.LAST_DURATION, 20)),
        {6: None, 7: Fires(f"A save of {WHO} has been running for 6m 0s.", SAVE, "warning")},
    ),
    Case(
        "a save that usually takes a minute",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60), save(metrics.LAST_DURATION, 60)),
        {11: None},
    ),
    Case(
        "the last save failed at once, the one before took long",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 660), save(metrics.LAST_DURATION, "60x10 0.1")),
        {20: None},
    ),
    Case(
        "a save of a task that saves every minute, under rules for 30 minutes",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60), save(metrics.LAST_DURATION, 1), of(metrics.EXPECTED_INTERVAL, 60)),
        {1: None, 2: Fires(f"A save of {WHO} has been running for 1m 0s.", SAVE, "warning")},
    ),
    Case(
        "a save that takes ten times as long, of a task that saves once a day",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60), save(metrics.LAST_DURATION, 60), of(metrics.EXPECTED_INTERVAL, 86400)),
        {120: None, 300: Fires(f"A save of {WHO} has been running for 4h 59m 0s.", SAVE, "warning")},
        tick=10,
    ),
    Case(
        "the first save of a task that declared an interval of a minute, under rules for 30 minutes",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60), of(metrics.EXPECTED_INTERVAL, 60)),
        {2: None, 3: Fires(f"A save of {WHO} has been running for 2m 0s.", SAVE, "warning")},
    ),
    Case(
        "the first save of a task",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60),),
        {31: None, 32: Fires(f"A save of {WHO} has been running for 31m 0s.", SAVE, "warning")},
    ),
    Case(
        "a process death detected a minute ago, for six hours",
        "CheckpointInterrupted",
        (save(metrics.LAST_FAILURE, 60, error_class="interrupted"),),
        {30: CUT, 360: CUT, 390: None},
        tick=30,
    ),
    Case("a failure of another class", "CheckpointInterrupted", (save(metrics.LAST_FAILURE, 60, error_class="storage"),), {2: None}),
    Case(
        "damage, and no verified checkpoint since, for a week",
        "CheckpointCorrupted",
        (DAMAGE, of(metrics.LAST_VERIFIED, 300)),
        {60: DAMAGE_FOUND, 10080: DAMAGE_FOUND, 10140: None},
        tick=60,
    ),
    Case("damage, and never a verified checkpoint", "CheckpointCorrupted", (DAMAGE,), {11: DAMAGE_FOUND}),
    Case(
        "damage, and a verified checkpoint after it",
        "CheckpointCorrupted",
        (DAMAGE, of(metrics.LAST_VERIFIED, "300x19 660")),
        {19: DAMAGE_FOUND, 21: None},
    ),
    Case(
        "a failure that is not damage",
        "CheckpointCorrupted",
        (of(metrics.LAST_FAILURE, 600, operation="load", error_class="storage"),),
        {11: None},
    ),
    Case(
        "an altered state, and no correct one since, for a week",
        "CheckpointAltered",
        (ALTERED, of(metrics.LAST_VERIFIED, 300)),
        {60: CHANGED, 10080: CHANGED, 10140: None},
        tick=60,
    ),
    Case("an altered state, and a correct one after it", "CheckpointAltered", (ALTERED, of(metrics.LAST_VERIFIED, 660)), {12: None}),
    Case(
        "a failed restore, for two days",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 1, operation="restore"),
            of(metrics.LAST_FAILURE, 60, operation="restore", error_class="storage"),
        ),
        {60: Fires(f"The last 1 attempts to restore {WHO} failed.", RESTORE), 2940: None},
        tick=60,
    ),
    Case(
        "a first run finds no checkpoint",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 1, operation="restore"),
            of(metrics.LAST_FAILURE, 60, operation="restore", error_class="not_found"),
        ),
        {2: None},
    ),
    Case(
        "a failure, then a success",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 0, operation="restore"),
            of(metrics.LAST_FAILURE, 60, operation="restore", error_class="storage"),
        ),
        {2: None},
    ),
    Case(
        "a success, then a failure",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 1, operation="restore"),
            of(metrics.LAST_SUCCESS, 30, operation="restore"),
            of(metrics.LAST_FAILURE, 60, operation="restore", error_class="storage"),
        ),
        {2: Fires(f"The last 1 attempts to restore {WHO} failed.", RESTORE)},
    ),
    Case(
        "a failure, a success, then a run that finds no checkpoint",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 1, operation="restore"),
            of(metrics.LAST_SUCCESS, 120, operation="restore"),
            *(
                of(metrics.LAST_FAILURE, when, operation="restore", error_class=failure)
                for when, failure in ((60, "storage"), (180, "not_found"))
            ),
        ),
        {4: None},
    ),
    Case(
        "more than twice as large as a day ago",
        "CheckpointGrowing",
        (of(metrics.LAST_SIZE, "2000000x143 5000000", kind="stored"),),
        {
            1440: None,
            1860: Fires(f"Checkpoints of {WHO} have 4.768MiB, more than twice as much as 1d ago.", {"kind": "stored"}, "warning"),
            3300: None,
        },
        tick=10,
    ),
    Case(
        "not quite twice as large",
        "CheckpointGrowing",
        (of(metrics.LAST_SIZE, "2000000x143 3900000", kind="stored"),),
        {1860: None},
        tick=10,
    ),
    Case(
        "ten times as large, but still small",
        "CheckpointGrowing",
        (of(metrics.LAST_SIZE, "20000x143 200000", kind="stored"),),
        {1860: None},
        tick=10,
    ),
    Case(
        "space for fewer than three more saves",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "5e9x9 2e9"), of(metrics.LAST_SIZE, "1e9", kind="stored")),
        {
            9: None,
            14: None,
            15: Fires(
                f"1.863GiB are free for {WHO}: not enough for three more saves, or used up within 2d at the current rate.",
                severity="warning",
            ),
        },
    ),
    Case(
        "shrinking free space: full in two days",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "5e10-2e8x40"), of(metrics.LAST_SIZE, "1e9", kind="stored")),
        {
            0: None,
            400: Fires(
                f"39.12GiB are free for {WHO}: not enough for three more saves, or used up within 2d at the current rate.",
                severity="warning",
            ),
        },
        tick=10,
    ),
    Case(
        "slowly shrinking free space",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "5e10-1e8x40"), of(metrics.LAST_SIZE, "1e9", kind="stored")),
        {400: None},
        tick=10,
    ),
    Case(
        "one large save soon after the first known sample",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "1e12x29 9.5e11"), of(metrics.LAST_SIZE, "5e10", kind="stored")),
        {30: None, 40: None},
    ),
    Case(
        "the first saves of a run use space until retention frees it",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "1e12-1.6e10x24 6.2e11"), of(metrics.LAST_SIZE, "5e10", kind="stored")),
        {200: None, 360: None, 400: None},
        tick=10,
    ),
    Case(
        "five times as slow as before",
        "CheckpointSlow",
        took(2, 10),
        {2880: None, 3270: Fires(f"A save of {WHO} takes 10s on average.", SAVE, "warning")},
        tick=10,
    ),
    Case("not quite three times as slow", "CheckpointSlow", took(2, 5.9), {3270: None}, tick=10),
    Case("ten times as slow, but still fast", "CheckpointSlow", took(0.05, 0.5), {3270: None}, tick=10),
    Case("slow, but no earlier saves to compare with", "CheckpointSlow", took(10, 10, until=30), {290: None}, tick=10),
    Case(
        "an exporter that is retried without success",
        "CkptObserveNotDelivering",
        (of(metrics.RETRIES, "0+1x60", exporter="otlp"), of(metrics.DELIVERED_SPANS, 5, exporter="otlp")),
        {
            14: None,
            20: Fires(
                "Nothing is delivered from host:9464 to otlp. Records are kept on disk up to the disk limit.",
                {"exporter": "otlp"},
                "warning",
            ),
        },
    ),
    Case(
        "an exporter that fails sometimes",
        "CkptObserveNotDelivering",
        (of(metrics.RETRIES, "0+1x60", exporter="otlp"), of(metrics.DELIVERED_SPANS, "0+1x60", exporter="otlp")),
        {60: None},
    ),
    Case(
        "an exporter that failed and has nothing left to deliver",
        "CkptObserveNotDelivering",
        (of(metrics.RETRIES, 5, exporter="otlp"),),
        {60: None},
    ),
    Case(
        "records were dropped",
        "CkptObserveDropped",
        (of(metrics.DROPPED_RECORDS, counter(2, 50), reason="overflow"),),
        {49: None, 61: Fires("About 1.017 records were dropped on host:9464 (overflow).", {"reason": "overflow"}, "warning"), 111: None},
    ),
    Case(
        "an exporter refused a span",
        "CkptObserveDropped",
        (of(metrics.REFUSED_SPANS, counter(2, 50), exporter="otlp"),),
        {49: None, 61: Fires("About 1.017 records were dropped on host:9464 (otlp).", {"exporter": "otlp"}, "warning")},
    ),
    Case(
        "metrics of a machine vanished while a task was running",
        "CheckpointMetricsVanished",
        (of(metrics.TASKS_IN_FLIGHT, "2x10 stale"),),
        {15: None, 16: Fires("When host:9464 last reported, 2 runs of task train were in progress.")},
    ),
    Case(
        "metrics of a machine vanished six hours ago",
        "CheckpointMetricsVanished",
        (of(metrics.TASKS_IN_FLIGHT, "2x1 stale"),),
        {380: None},
        tick=10,
    ),
    Case(
        "the task ended before the metrics vanished",
        "CheckpointMetricsVanished",
        (of(metrics.TASKS_IN_FLIGHT, "2x10 0 stale"),),
        {30: None},
    ),
    Case(
        "another program of the machine pushes the metrics now",
        "CheckpointMetricsVanished",
        (of(metrics.TASKS_IN_FLIGHT, "2x10 stale"), of(metrics.TASKS_IN_FLIGHT, "_x10 2", job="evaluate")),
        {30: None},
    ),
    Case("the metrics came back", "CheckpointMetricsVanished", (of(metrics.TASKS_IN_FLIGHT, "2x10 stale _x2 2"),), {30: None}),
    Case(
        "no metrics",
        "CheckpointMetricsAbsent",
        (),
        {
            14: None,
            15: Fires(
                "Prometheus gets no metrics from ckpt_observe, so the alerts do not notice what happens to checkpoints.", severity="warning"
            ),
        },
    ),
    Case("metrics of one process", "CheckpointMetricsAbsent", (of(metrics.BUILD, 1, version="1"),), {15: None}),
    Case(
        "always",
        "CheckpointWatchdog",
        (),
        {
            0: Fires("This alert always fires. If its receiver no longer gets it, Prometheus or Alertmanager is down.", severity="none"),
            60: Fires("This alert always fires. If its receiver no longer gets it, Prometheus or Alertmanager is down.", severity="none"),
        },
    ),
)
SOURCELESS = ("CheckpointMetricsAbsent", "CheckpointWatchdog")
"""Alerts that fire without any series, and have no labels of one."""


KINDS = sorted({(case.site.interval, case.tick) for case in CASES})


def suite(interval, tick, rule_file):
    """A test file for promtool: the cases of one kind, and one case without data."""
    every = f"{tick}m"
    tests = [_test(case) for case in CASES if (case.site.interval, case.tick) == (interval, tick)]
    silent = [
        {"eval_time": "2h", "alertname": name, "exp_alerts": []}
        for name in _rules_by_name(Site(interval, **STACK))
        if name not in SOURCELESS
    ]
    nothing = {"name": "no data", "interval": every, "input_series": [], "alert_rule_test": silent}
    return {"rule_files": [rule_file], "evaluation_interval": every, "tests": [*tests, nothing]}


def _rules_by_name(site):
    return {rule["alert"]: rule for group in rules(site)["groups"] for rule in group["rules"]}


def _test(case):
    checks = [
        {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": [_alert(case, each) for each in _several(fires)]}
        for minute, fires in case.expected.items()
    ]
    inputs = [{**each, "values": _lasting(each["values"], max(case.expected) // case.tick)} for each in case.input_series]
    return {"name": f"{case.alert}: {case.title}", "interval": f"{case.tick}m", "input_series": inputs, "alert_rule_test": checks}


def _lasting(values, ticks):
    return values if values.endswith("stale") or "x" in values.split()[-1] else f"{values}x{ticks}"


def _several(fires):
    return () if fires is None else (fires,) if isinstance(fires, Fires) else fires


def _alert(case, fires):
    about = _rules_by_name(case.site)[case.alert]["annotations"]
    exporters = case.alert.startswith("CkptObserve")
    labels = {} if case.alert in SOURCELESS else FROM if exporters else {**FROM, "task": "train"}
    labels = {**labels, **fires.labels, "severity": fires.severity}
    links = {name: with_labels(text, labels) for name, text in about.items() if name.endswith("_url")}
    return {"exp_labels": labels, "exp_annotations": {"summary": about["summary"], "description": fires.says, **links}}


def with_labels(template, labels):
    """Return the link that Prometheus makes of a template. Each label that a condition names exists."""
    template = re.sub(r"\{\{ (if \$labels\.\w+|end) \}\}", "", template)
    return re.sub(r"\{\{ \$labels\.(\w+)(?: \| urlquery)? \}\}", lambda match: urllib.parse.quote(labels[match[1]]), template)


def committed():
    """The content of each test file in dashboards/alerts, by name."""
    files = {f"tests-every-{tick}m.yml": suite(interval, tick, RULES) for interval, tick in KINDS if interval == DEFAULT.interval}
    return {
        name: f"# Generated by `python tests/services/alert_cases.py`, run by `promtool test rules {name}`.\n{yaml.dump(content)}"
        for name, content in files.items()
    }


if __name__ == "__main__":
    for name, text in committed().items():
        (COMMITTED / name).write_text(text, encoding="utf-8")
