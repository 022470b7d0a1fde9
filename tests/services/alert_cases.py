"""For each alert: when it fires, what it then says, and where it stays silent; as tests for promtool.

`python tests/services/alert_cases.py` writes those of the default rules to dashboards/alerts, for everybody to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ckpt_observe.alerts.files import RULES
from ckpt_observe.alerts.plan import Plan
from ckpt_observe.alerts.rules import rules
from ckpt_observe.semconv import metrics
from ckpt_observe.support import yaml

COMMITTED = Path(__file__).parents[2] / "dashboards" / "alerts"
DEFAULT, DENSE = Plan(), Plan(interval=60)
FROM = {"instance": "host:9464", "job": "trainer"}
WHO = "task train on host:9464"


class Fires(NamedTuple):
    """One alert, with labels beyond those of every series, and what it says."""

    says: str
    labels: dict = {}  # noqa: RUF012 - never changed
    severity: str = "critical"


class Case(NamedTuple):
    title: str
    alert: str
    given: tuple
    expected: dict
    """By minute, what fires then: a `Fires`, several, or None."""
    plan: Plan = DEFAULT
    tick: int = 1
    """Minutes between two samples and two evaluations. Promtool's time is in their number."""


def of(spec, values, part="", **labels):
    """A series of the task, in promtool's notation; its last value stays."""
    known = {**labels, **({"task": "train"} if "task" in spec.labels else {})}
    return {"series": series(spec, part, known), "values": str(values)}


def series(spec, part, labels):
    written = ", ".join(f'{name}="{value}"' for name, value in sorted({**FROM, **labels}.items()))
    return f"{spec.prometheus_name}{part}{{{written}}}"


def save(spec, values, **labels):
    return of(spec, values, operation="save", **labels)


def counter(first, *ticks):
    """One that stands at `first` and rises at these ticks."""
    parts, at, value = [], 0, first
    for tick in ticks:
        parts.append(f"{value}x{tick - at - 1}")
        at, value = tick, value + 1
    return " ".join([*parts, f"{value}"])


def saves(ok, failed):
    """Counters of saves that ended well and badly at these ticks; others before them are long forgotten."""
    return (
        save(metrics.OPERATIONS, counter(1000, *ok), outcome="ok", error_class=""),
        save(metrics.OPERATIONS, counter(1000, *failed), outcome="error", error_class="storage"),
    )


def every(ticks, end, without=()):
    return [tick for tick in range(ticks, end, ticks) if tick not in without]


def took(normal, then, since=288, until=330):
    """Saves every three ticks that took `normal` seconds, and from a tick on `then`."""
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
FOUND = Fires(f"A verify of {WHO} found damage 1970-01-01 00:10:00 +0000 UTC.", VERIFY)
CHANGED = Fires(f"A restore of {WHO} brought back keys that are lost or of another type 1970-01-01 00:10:00 +0000 UTC.", RESTORE)
CUT = Fires(f"A save of {WHO} was cut short; found 1970-01-01 00:01:00 +0000 UTC.", SAVE, "warning")
LATE = of(metrics.EXPECTED_INTERVAL, 1800)

CASES = (
    Case(
        "tried for longer than an interval without a success",
        "CheckpointNeverSucceeded",
        (save(metrics.FIRST_ATTEMPT, 60), TRIED),
        {31: None, 32: Fires(f"Saves of {WHO} have been tried for 31m 0s without one success.", SAVE)},
    ),
    Case("given up two days ago", "CheckpointNeverSucceeded", (save(metrics.FIRST_ATTEMPT, 60), TRIED), {2940: None}, tick=60),
    Case(
        "one success, long ago",
        "CheckpointNeverSucceeded",
        (save(metrics.FIRST_ATTEMPT, 60), TRIED, save(metrics.LAST_SUCCESS, 70)),
        {60: None},
    ),
    Case(
        "three failures in a row",
        "CheckpointFailing",
        (save(metrics.CONSECUTIVE_FAILURES, 3), TRIED),
        {5: Fires(f"The last 3 saves of {WHO} failed.", SAVE)},
    ),
    Case(
        "three failures in a row, given up two days ago",
        "CheckpointFailing",
        (save(metrics.CONSECUTIVE_FAILURES, 3), TRIED),
        {2940: None},
        tick=60,
    ),
    Case("two failures in a row", "CheckpointFailing", (save(metrics.CONSECUTIVE_FAILURES, 2), TRIED), {5: None}),
    Case("three failed loads", "CheckpointFailing", (of(metrics.CONSECUTIVE_FAILURES, 3, operation="load"), TRIED), {5: None}),
    Case(
        "two and a half intervals and five minutes since the last save",
        "CheckpointStale",
        (RUNNING, LATE, save(metrics.LAST_SUCCESS, 600)),
        {85: None, 90: None, 91: Fires(f"If {WHO} died now, 1h 21m 0s of work would be lost.")},
    ),
    Case(
        "a run that has not saved at all, though it said it would",
        "CheckpointStale",
        (RUNNING, LATE),
        {80: None, 81: Fires(f"If {WHO} died now, 1h 21m 0s of work would be lost.")},
    ),
    Case("no task is running", "CheckpointStale", (LATE, save(metrics.LAST_SUCCESS, 600)), {120: None}),
    Case(
        "today's run is young; yesterday's is over",
        "CheckpointStale",
        (of(metrics.TASKS_OLDEST_START, 86400), LATE, save(metrics.LAST_SUCCESS, 600)),
        {1450: None, 1500: None},
        tick=10,
    ),
    Case(
        "a burst taught it an interval of seconds, then it waits for a person",
        "CheckpointStale",
        (RUNNING, of(metrics.EXPECTED_INTERVAL, 2), save(metrics.LAST_SUCCESS, 60)),
        {30: None},
    ),
    Case("an interval that nobody knows", "CheckpointStale", (RUNNING, save(metrics.LAST_SUCCESS, 60)), {120: None}),
    Case(
        "three of a dozen saves failed, not in a row",
        "CheckpointFailureRatio",
        saves(every(3, 42, (9, 21, 33)), (9, 21, 33)),
        {320: None, 410: Fires(f"27.27% of the saves of {WHO} failed within 6h.", SAVE, "warning"), 500: None},
        tick=10,
    ),
    Case("two of a dozen saves failed", "CheckpointFailureRatio", saves(every(3, 42, (9, 33)), (9, 33)), {410: None}, tick=10),
    Case("three of forty saves failed", "CheckpointFailureRatio", saves(every(1, 42, (9, 21, 33)), (9, 21, 33)), {410: None}, tick=10),
    Case(
        "three failures in a day, one just now",
        "CheckpointErrorBudgetBurn",
        saves(every(3, 144, (30, 90, 141)), (30, 90, 141)),
        {
            1400: None,
            1430: (
                Fires(f"6.383% of the saves of {WHO} failed within 1d; 1% may.", {**SAVE, "window": "1d"}, "warning"),
                Fires(f"6.383% of the saves of {WHO} failed within 3d; 1% may.", {**SAVE, "window": "3d"}, "warning"),
            ),
        },
        tick=10,
    ),
    Case("two failures in a day", "CheckpointErrorBudgetBurn", saves(every(3, 144, (90, 141)), (90, 141)), {1430: None}, tick=10),
    Case(
        "three failures in a day, all long ago",
        "CheckpointErrorBudgetBurn",
        saves(every(3, 144, (30, 33, 36)), (30, 33, 36)),
        {1430: None},
        tick=10,
    ),
    Case(
        "a save a minute, a fifth of them failing: the fast window, too",
        "CheckpointErrorBudgetBurn",
        saves(every(1, 120, range(60, 120, 5)), range(60, 120, 5)),
        {
            70: (
                Fires(f"4.286% of the saves of {WHO} failed within 1d; 1% may.", {**SAVE, "window": "1d"}, "warning"),
                Fires(f"4.286% of the saves of {WHO} failed within 3d; 1% may.", {**SAVE, "window": "3d"}, "warning"),
            ),
            118: (
                Fires(f"20.34% of the saves of {WHO} failed within 1h; 1% may.", {**SAVE, "window": "1h"}),
                Fires(f"10.17% of the saves of {WHO} failed within 6h; 1% may.", {**SAVE, "window": "6h"}),
                Fires(f"10.17% of the saves of {WHO} failed within 1d; 1% may.", {**SAVE, "window": "1d"}, "warning"),
                Fires(f"10.17% of the saves of {WHO} failed within 3d; 1% may.", {**SAVE, "window": "3d"}, "warning"),
            ),
        },
        DENSE,
    ),
    Case("a save a minute, one failed", "CheckpointErrorBudgetBurn", saves(every(1, 120, (118,)), (118,)), {119: None}, DENSE),
    Case(
        "a save in flight for ten times as long as ever",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60), save(metrics.LAST_DURATION, 20)),
        {6: None, 7: Fires(f"A save of {WHO} has been running for 6m 0s.", SAVE, "warning")},
    ),
    Case("it always takes a minute", "CheckpointStuck", (save(metrics.OLDEST_START, 60), save(metrics.LAST_DURATION, 60)), {11: None}),
    Case(
        "the last one failed at once, the one before took long",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 660), save(metrics.LAST_DURATION, "60x10 0.1")),
        {20: None},
    ),
    Case(
        "its first save ever",
        "CheckpointStuck",
        (save(metrics.OLDEST_START, 60),),
        {31: None, 32: Fires(f"A save of {WHO} has been running for 31m 0s.", SAVE, "warning")},
    ),
    Case(
        "a death that was found a minute ago, for six hours",
        "CheckpointInterrupted",
        (save(metrics.LAST_FAILURE, 60, error_class="interrupted"),),
        {30: CUT, 360: CUT, 390: None},
        tick=30,
    ),
    Case("another failure", "CheckpointInterrupted", (save(metrics.LAST_FAILURE, 60, error_class="storage"),), {2: None}),
    Case(
        "damage, and nothing read back since, for a week",
        "CheckpointCorrupted",
        (DAMAGE, of(metrics.LAST_VERIFIED, 300)),
        {60: FOUND, 10080: FOUND, 10140: None},
        tick=60,
    ),
    Case("damage, and nothing ever read back", "CheckpointCorrupted", (DAMAGE,), {11: FOUND}),
    Case(
        "damage, and a whole one read back after it",
        "CheckpointCorrupted",
        (DAMAGE, of(metrics.LAST_VERIFIED, "300x19 660")),
        {19: FOUND, 21: None},
    ),
    Case(
        "a failure that is no damage",
        "CheckpointCorrupted",
        (of(metrics.LAST_FAILURE, 600, operation="load", error_class="storage"),),
        {11: None},
    ),
    Case(
        "an altered state, and none right since, for a week",
        "CheckpointAltered",
        (ALTERED, of(metrics.LAST_VERIFIED, 300)),
        {60: CHANGED, 10080: CHANGED, 10140: None},
        tick=60,
    ),
    Case("an altered state, and a right one after it", "CheckpointAltered", (ALTERED, of(metrics.LAST_VERIFIED, 660)), {12: None}),
    Case(
        "a restore failed, for two days",
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
        "it failed once, then worked",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 0, operation="restore"),
            of(metrics.LAST_FAILURE, 60, operation="restore", error_class="storage"),
        ),
        {2: None},
    ),
    Case(
        "a restore worked once, and fails now",
        "CheckpointRestoreFailing",
        (
            of(metrics.CONSECUTIVE_FAILURES, 1, operation="restore"),
            of(metrics.LAST_SUCCESS, 30, operation="restore"),
            of(metrics.LAST_FAILURE, 60, operation="restore", error_class="storage"),
        ),
        {2: Fires(f"The last 1 attempts to restore {WHO} failed.", RESTORE)},
    ),
    Case(
        "it failed once, then worked; the next run finds no checkpoint",
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
        "ten times as large, and still small",
        "CheckpointGrowing",
        (of(metrics.LAST_SIZE, "20000x143 200000", kind="stored"),),
        {1860: None},
        tick=10,
    ),
    Case(
        "room for fewer than three more saves",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "5e9x9 2e9"), of(metrics.LAST_SIZE, "1e9", kind="stored")),
        {
            9: None,
            14: None,
            15: Fires(f"1.863GiB are free for {WHO}: too little for three more saves, or gone in 2d if this goes on.", severity="warning"),
        },
    ),
    Case(
        "less and less room: none left in two days",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "5e10-2e8x40"), of(metrics.LAST_SIZE, "1e9", kind="stored")),
        {
            0: None,
            400: Fires(f"39.12GiB are free for {WHO}: too little for three more saves, or gone in 2d if this goes on.", severity="warning"),
        },
        tick=10,
    ),
    Case(
        "slowly less room",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "5e10-1e8x40"), of(metrics.LAST_SIZE, "1e9", kind="stored")),
        {400: None},
        tick=10,
    ),
    Case(
        "one large save, soon after the first that is known",
        "CheckpointStorageFilling",
        (of(metrics.FREE_BYTES, "1e12x29 9.5e11"), of(metrics.LAST_SIZE, "5e10", kind="stored")),
        {30: None, 40: None},
    ),
    Case(
        "the first saves of a run take room, then retention gives back as much",
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
    Case("ten times as slow, and still quick", "CheckpointSlow", took(0.05, 0.5), {3270: None}, tick=10),
    Case("slow, but there is no past to compare with", "CheckpointSlow", took(10, 10, until=30), {290: None}, tick=10),
    Case(
        "an exporter that is tried again and again",
        "CkptObserveNotDelivering",
        (of(metrics.RETRIES, "0+1x60", exporter="otlp"), of(metrics.DELIVERED_SPANS, 5, exporter="otlp")),
        {
            14: None,
            20: Fires(
                "Nothing has been delivered from host:9464 to otlp; it waits on disk, up to its limit.", {"exporter": "otlp"}, "warning"
            ),
        },
    ),
    Case(
        "an exporter that fails at times",
        "CkptObserveNotDelivering",
        (of(metrics.RETRIES, "0+1x60", exporter="otlp"), of(metrics.DELIVERED_SPANS, "0+1x60", exporter="otlp")),
        {60: None},
    ),
    Case(
        "an exporter that failed and has nothing more to do",
        "CkptObserveNotDelivering",
        (of(metrics.RETRIES, 5, exporter="otlp"),),
        {60: None},
    ),
    Case(
        "records were lost",
        "CkptObserveDropped",
        (of(metrics.DROPPED_RECORDS, counter(2, 50), reason="overflow"),),
        {49: None, 61: Fires("About 1.017 records on host:9464 were lost (overflow).", {"reason": "overflow"}, "warning"), 111: None},
    ),
    Case(
        "an exporter refused a span",
        "CkptObserveDropped",
        (of(metrics.REFUSED_SPANS, counter(2, 50), exporter="otlp"),),
        {49: None, 61: Fires("About 1.017 records on host:9464 were lost (otlp).", {"exporter": "otlp"}, "warning")},
    ),
    Case(
        "a host fell silent with a task running",
        "CheckpointMetricsVanished",
        (of(metrics.TASKS_IN_FLIGHT, "2x10 stale"),),
        {15: None, 16: Fires("The last that was heard of host:9464 is that 2 runs of task train were going on.")},
    ),
    Case(
        "a host fell silent six hours ago", "CheckpointMetricsVanished", (of(metrics.TASKS_IN_FLIGHT, "2x1 stale"),), {380: None}, tick=10
    ),
    Case("the task had ended before", "CheckpointMetricsVanished", (of(metrics.TASKS_IN_FLIGHT, "2x10 0 stale"),), {30: None}),
    Case(
        "another program of the host pushes for it now",
        "CheckpointMetricsVanished",
        (of(metrics.TASKS_IN_FLIGHT, "2x10 stale"), of(metrics.TASKS_IN_FLIGHT, "_x10 2", job="evaluate")),
        {30: None},
    ),
    Case("it came back", "CheckpointMetricsVanished", (of(metrics.TASKS_IN_FLIGHT, "2x10 stale _x2 2"),), {30: None}),
    Case(
        "nothing at all",
        "CheckpointMetricsAbsent",
        (),
        {14: None, 15: Fires("Prometheus has no series of ckpt_observe at all: no alert on checkpoints can fire.", severity="warning")},
    ),
    Case("somebody is there", "CheckpointMetricsAbsent", (of(metrics.BUILD, 1, version="1"),), {15: None}),
    Case(
        "always",
        "CheckpointWatchdog",
        (),
        {
            0: Fires("This alert always fires. When its receiver stops getting it, Prometheus or Alertmanager is down.", severity="none"),
            60: Fires("This alert always fires. When its receiver stops getting it, Prometheus or Alertmanager is down.", severity="none"),
        },
    ),
)
SOURCELESS = ("CheckpointMetricsAbsent", "CheckpointWatchdog")
"""Fire without any series, and so have no labels of one."""


KINDS = sorted({(case.plan.interval, case.tick) for case in CASES})


def suite(interval, tick, rule_file):
    """The cases of one kind, and one in which there is no data at all, as a test file of promtool."""
    every = f"{tick}m"
    tests = [_test(case) for case in CASES if (case.plan.interval, case.tick) == (interval, tick)]
    silent = [{"eval_time": "2h", "alertname": name, "exp_alerts": []} for name in _known(Plan(interval)) if name not in SOURCELESS]
    nothing = {"name": "no data", "interval": every, "input_series": [], "alert_rule_test": silent}
    return {"rule_files": [rule_file], "evaluation_interval": every, "tests": [*tests, nothing]}


def _known(plan):
    return {rule["alert"]: rule for group in rules(plan)["groups"] for rule in group["rules"]}


def _test(case):
    checks = [
        {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": [_alert(case, each) for each in _several(fires)]}
        for minute, fires in case.expected.items()
    ]
    given = [{**each, "values": _lasting(each["values"], max(case.expected) // case.tick)} for each in case.given]
    return {"name": f"{case.alert}: {case.title}", "interval": f"{case.tick}m", "input_series": given, "alert_rule_test": checks}


def _lasting(values, ticks):
    return values if values.endswith("stale") or "x" in values.split()[-1] else f"{values}x{ticks}"


def _several(fires):
    return () if fires is None else (fires,) if isinstance(fires, Fires) else fires


def _alert(case, fires):
    about = _known(case.plan)[case.alert]["annotations"]
    exporters = case.alert.startswith("CkptObserve")
    where = {} if case.alert in SOURCELESS else FROM if exporters else {**FROM, "task": "train"}
    return {"exp_labels": {**where, **fires.labels, "severity": fires.severity}, "exp_annotations": {**about, "description": fires.says}}


def committed():
    """What is in dashboards/alerts, by file name."""
    files = {f"tests-every-{tick}m.yml": suite(interval, tick, RULES) for interval, tick in KINDS if interval == DEFAULT.interval}
    return {
        name: f"# Made by `python tests/services/alert_cases.py`, run by `promtool test rules {name}`.\n{yaml.dump(content)}"
        for name, content in files.items()
    }


if __name__ == "__main__":
    for name, text in committed().items():
        (COMMITTED / name).write_text(text, encoding="utf-8")
