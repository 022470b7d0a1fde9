"""Whether I can recover, and to when."""

from __future__ import annotations

from ckpt_observe.dashboards import queries as ask
from ckpt_observe.dashboards import variables
from ckpt_observe.dashboards.kinds import OUTCOMES, Column, bars, lines, stat, states, table
from ckpt_observe.dashboards.layouts import Dashboard, Row
from ckpt_observe.dashboards.panels import COUNT, Panel, Texts, above, below
from ckpt_observe.semconv import attributes as names

DAY = 86400.0
STANDING: Texts = {
    "-1": ("silent", "gray"),
    "0": ("good", "green"),
    "1": ("late", "orange"),
    "2": ("failing", "red"),
    "3": ("failing and late", "semi-dark-red"),
}


def dashboard() -> Dashboard:
    return Dashboard(
        title="Overview",
        description="Can I recover, and to when? Red or orange: the table says which task, its description what to do.",
        span="24h",
        variables=[variables.task()],
        rows=[Row("Can I recover, and to when?", _verdict()), Row("Which task?", _tasks()), Row("Since when?", _history())],
    )


def _verdict() -> list[Panel]:
    return [
        stat(
            "Oldest good save",
            ask.oldest_save,
            "s",
            "How far back the worst task would go, also one that has ended, as long as it was heard of in the time shown. Whether that is late says the next one.",
            empty="no good save yet",
            width=4,
        ),
        stat(
            "Against interval",
            ask.most_late,
            "percentunit",
            "Age of the last good save, when last heard of, as a share of the expected interval; the worst of the tasks that run. From 250 % on a save is missing: look whether the program saves at all, then at its failures in Operations.",
            empty="no interval known, or nothing runs",
            steps=above(2, ask.LATE),
            width=4,
        ),
        stat(
            "Work at risk",
            ask.at_risk,
            "s",
            "What a crash now would cost the worst of the running tasks: the time since its last good save, or since its first attempt. Save sooner, or find out why it does not.",
            empty="nothing runs",
            width=4,
        ),
        stat(
            "Failed in a row",
            ask.most_failures,
            COUNT,
            "Saves that failed since the last good one, of the worst task. At 3 it is no accident: the errors by class in Operations name the reason.",
            empty="no save yet",
            steps=above(1, 3),
            width=4,
        ),
        stat(
            "Good saves",
            ask.success_ratio,
            "percentunit",
            "Good saves of all that ended, over the time shown; stopped and skipped ones do not count.",
            empty="no save in this time",
            steps=below(0.95, 0.99),
            width=4,
        ),
        stat(
            "Last verified",
            ask.oldest_verified,
            "s",
            "Since a checkpoint of the worst task was last read back and found right. A checkpoint that was never read back is a hope: run verify, or restore one.",
            empty="never verified",
            steps=above(7 * DAY, 30 * DAY),
            width=4,
        ),
        stat("In flight", ask.in_flight, COUNT, "Operations that run now.", empty="no operation known", width=5),
        stat(
            "Oldest in flight",
            ask.in_flight_age,
            "s",
            "How long the oldest of them has been running. Far above its usual time in Operations: its store hangs.",
            empty="nothing in flight",
            steps=above(600, 3600),
            width=5,
        ),
        stat(
            "Interrupted",
            ask.died,
            COUNT,
            "Operations cut short by the death of their process, in the time shown. Look for kills and out-of-memory; the trace names the phase.",
            empty="no operation yet",
            steps=above(1, 3),
            width=5,
        ),
        stat(
            "Damaged",
            ask.damaged,
            COUNT,
            "Checkpoints whose bytes are not those that were saved, found in the time shown. Restore an older one, keep the damaged one for analysis, check the disk.",
            empty="nothing was read back yet",
            steps=above(1, 1),
            width=5,
        ),
        stat(
            "Kept",
            ask.kept_in_all,
            "bytes",
            "Stored bytes of all saves less those removed, as far as observed. Storage says whether it grows.",
            empty="no save yet",
            width=4,
        ),
    ]


def _tasks() -> list[Panel]:
    columns = [
        Column("State", ask.standing, "none", texts=STANDING),
        Column("Last good save", ask.age, "s"),
        Column("Interval", ask.interval, "s"),
        Column("Late", ask.lateness, "percentunit", above(2, ask.LATE)),
        Column("Failed", ask.failures, COUNT, above(1, 3)),
        Column("Verified", ask.verified, "s", above(7 * DAY, 30 * DAY)),
        Column("In flight", ask.in_flight_by_task, "s", above(600, 3600)),
        Column("Running", ask.tasks_running, COUNT),
        Column("Last size", ask.saved_size, "bytes"),
    ]
    return [
        table(
            "Tasks",
            columns,
            ("job", "task"),
            "Each task as it stands now. Late counts only while the task runs: one that has ended has no next save. Failed is how many saves in a row. Last good save, verified and in flight: since when. A dash: nothing known, or nothing there.",
            empty="no operation yet",
        ),
        states(
            "State of saves",
            ask.standing,
            STANDING,
            "Failing: the last save failed. Late: the task runs, and its last good save is older than two and a half of its intervals. Silent: it ran when last heard of, and nobody serves its metrics now; it ended or died, and can be restored from its last good save. A click leads to the traces of failed operations.",
            empty="no save yet",
            traces=f"{names.OUTCOME}=error",
        ),
    ]


def _history() -> list[Panel]:
    return [
        lines(
            "Age of the last good save",
            [ask.age, ask.interval],
            "s",
            "A saw: each good save brings it back to zero. A tooth much higher than the expected interval is a save that is missing. It goes on rising when the process is gone.",
            empty="no good save yet",
        ),
        bars(
            "Saves by outcome",
            [ask.saves_by_outcome],
            COUNT,
            "Saves that ended in each step. Errors: see their class in Operations. Interrupted: the process died.",
            empty="no save in this time",
            traces=f"{names.OUTCOME}=${{__field.labels.outcome}}",
            colours=OUTCOMES,
        ),
    ]
