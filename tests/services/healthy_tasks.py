"""A task that saves regularly for days, as series for promtool: runs that begin, restore, save with some jitter, end, and begin again.

Once in ten days a save fails; some saves are skipped or cancelled. The status of the operations is computed by the code used in production.
"""

from __future__ import annotations

import itertools
import random

from alert_cases import series

from ckpt_observe.metricstore.operation_status import Attempt, OperationStatus
from ckpt_observe.semconv import metrics

DAY = 86400
ABSENT_AT_ZERO = (
    metrics.TASKS_OLDEST_START,
    metrics.EXPECTED_INTERVAL,
    metrics.LAST_SIZE,
    metrics.LAST_VERIFIED,
    metrics.LAST_FAILURE,
    metrics.FIRST_ATTEMPT,
    metrics.LAST_ATTEMPT,
    metrics.LAST_SUCCESS,
    metrics.LAST_DURATION,
)


class Task:
    """One task. `advance` moves it to a point in time; `series` yields what a scrape would return then."""

    def __init__(self, name, cadence, hang=None):
        """`hang` is the time range in which it runs and does not save."""
        self.name, self.cadence, self.hang = name, cadence, hang
        self.chance = random.Random(cadence)
        self.statuses = {"save": OperationStatus(), "restore": OperationStatus()}
        self.counts = dict.fromkeys(
            (("ok", ""), ("error", "storage"), ("interrupted", "interrupted"), ("skipped", ""), ("cancelled", "cancelled")), 0
        )
        """Saves by outcome and error class."""
        self.time_spent = self.failed_on = 0.0
        self.began, self.events = 0.0, self.timeline()
        self.next = next(self.events)

    def timeline(self):
        """Yield times and events: a run that begins or ends, or an attempt."""
        length, pause = max(20 * 3600, 8 * self.cadence), 2 * 3600
        for number, begin in enumerate(itertools.count(600.0, length + pause)):
            yield begin, "begin"
            yield (
                begin + 1,
                Attempt(
                    begin,
                    begin + 1,
                    "ok" if number else "error",
                    detected=begin + 1,
                    verified=bool(number),
                    error_classes=() if number else ("not_found",),
                ),
            )
            at = begin
            for step in itertools.count():
                at += self.cadence * self.chance.uniform(0.85, 1.15)
                if at > begin + length:
                    break
                yield self.attempt(at, f"{number}-{step}", str(number))
            yield begin + length, "end"

    def attempt(self, at, save_id, run_id):
        took, outcome, error_classes = self.chance.uniform(2, 4), "ok", ()
        if at - self.failed_on > 10 * DAY:
            self.failed_on, outcome, error_classes = at, "error", ("storage",)
        elif save_id.endswith("-3"):
            outcome = self.chance.choice(("skipped", "cancelled"))
        return at + took, Attempt(
            at,
            at + took,
            outcome,
            detected=at + took,
            error_classes=error_classes,
            run_id=run_id,
            save_id=save_id,
            sizes={"stored": 5e6 * (1 + at / DAY / 100)},
        )

    def advance(self, now):
        while self.next[0] <= now:
            at, event = self.next
            self.next = next(self.events)
            if event == "begin":
                self.began = at
            elif event == "end":
                self.began = 0.0
            elif not (self.hang and self.hang[0] < at < self.hang[1]):
                self.apply(event)

    def apply(self, attempt):
        if not attempt.save_id:
            self.statuses["restore"].apply(attempt)
            return
        self.statuses["save"].apply(attempt)
        failure = attempt.error_classes[0] if attempt.error_classes else "cancelled" if attempt.outcome == "cancelled" else ""
        self.counts[attempt.outcome, failure] += 1
        self.time_spent += attempt.end - attempt.start

    def series(self):
        """Yield metric, labels and value."""
        saves = self.statuses["save"]
        yield metrics.TASKS_IN_FLIGHT, {}, float(bool(self.began))
        yield metrics.TASKS_OLDEST_START, {}, self.began
        yield metrics.EXPECTED_INTERVAL, {}, saves.interval
        yield metrics.LAST_SIZE, {"kind": "stored"}, saves.sizes.get("stored", 0.0)
        yield metrics.LAST_VERIFIED, {}, self.statuses["restore"].last_verified
        for operation, status in self.statuses.items():
            of = {"operation": operation}
            yield metrics.CONSECUTIVE_FAILURES, of, status.consecutive_failures
            for spec, value in (
                (metrics.FIRST_ATTEMPT, status.first_attempt),
                (metrics.LAST_ATTEMPT, status.last_attempt),
                (metrics.LAST_SUCCESS, status.last_success),
                (metrics.LAST_DURATION, status.duration),
            ):
                yield spec, of, value
            for failure in ("storage", "not_found"):
                yield metrics.LAST_FAILURE, {**of, "error_class": failure}, status.last_detected.get(failure, 0.0)
        of = {"operation": "save", "system": "reference", "store": "file"}
        for (outcome, failure), count in self.counts.items():
            yield metrics.OPERATIONS, {**of, "outcome": outcome, "error_class": failure}, count
        yield metrics.OPERATION_DURATION, {**of, "part": "_sum"}, self.time_spent
        yield metrics.OPERATION_DURATION, {**of, "part": "_count"}, sum(self.counts.values())


def scraped_series(tasks, days, tick):
    """Return what Prometheus scrapes every `tick` seconds, as input series of promtool. What never happened has no series."""
    values_by_series = {}
    ticks = int(days * DAY / tick) + 1
    for index in range(ticks):
        for task in tasks:
            task.advance(index * tick)
            for spec, labels, value in task.series():
                name = series(spec, labels.pop("part", ""), {**labels, "task": task.name})
                if value or spec not in ABSENT_AT_ZERO:
                    values_by_series.setdefault(name, {})[index] = f"{value:.3f}"
    page = [{"series": name, "values": _notation(values, ticks)} for name, values in values_by_series.items()]
    return [*page, {"series": series(metrics.BUILD, "", {"version": "1"}), "values": f"1x{ticks}"}]


def _notation(values, ticks):
    runs = [(value, len(list(same))) for value, same in itertools.groupby(values.get(index, "_") for index in range(ticks))]
    return " ".join(f"{value}x{length}" if value == "_" else f"{value}x{length - 1}" for value, length in runs)
