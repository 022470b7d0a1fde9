"""The Overview dashboard: whether tasks can be recovered, and to what point."""

from __future__ import annotations

from ckpt_observe.dashboards import queries
from ckpt_observe.dashboards.colours import ERROR, INTERRUPTED, OK, OUTCOMES, UNKNOWN, WARNING
from ckpt_observe.dashboards.layout import Dashboard, Row, task_variable
from ckpt_observe.dashboards.panels import COUNT, Panel, Texts, above, bars, below, lines, stat
from ckpt_observe.dashboards.tables import TableColumn, states, table
from ckpt_observe.semconv import attributes as names

DAY = 86400.0
SAVE_STATES: Texts = {
    "-1": ("silent", UNKNOWN),
    "0": ("good", OK),
    "1": ("late", WARNING),
    "2": ("failing", ERROR),
    "3": ("failing, late", "semi-dark-red"),
}


def dashboard() -> Dashboard:
    return Dashboard(
        title="Overview",
        description="Can I recover, and to what point? If a tile is orange or red, the table shows which task it is, and the description of the tile says what to do.",
        span="24h",
        variables=[task_variable()],
        rows=[Row("Recovery status", _status()), Row("Tasks", _tasks()), Row("History", _history())],
    )


def _status() -> list[Panel]:
    return [
        stat(
            "Time since last good save",
            queries.max_save_age,
            "s",
            "The task with the oldest last good save would go back this far. Includes ended tasks that reported metrics in the time range. Save lateness shows whether this is too long.",
            empty="no good save yet",
            width=7,
        ),
        stat(
            "Consecutive failures",
            queries.max_consecutive_failures,
            COUNT,
            "Failed saves since the last good one, of the worst task. From 3 on, look at the errors by class in Operations.",
            empty="no save yet",
            steps=above(1, 3),
            width=5,
        ),
        stat(
            "Work at risk",
            queries.work_at_risk,
            "s",
            "The work that would be lost if the worst running task crashed now: the time since its last good save, or since the run started if that is later. Save more often, or find out why it does not save.",
            empty="no task is running",
            width=4,
        ),
        stat(
            "Save lateness",
            queries.max_lateness,
            "percentunit",
            "Work at risk divided by the expected interval; the worst running task. Above 250 % a save is late: check whether the program saves at all, then look at its failures in Operations.",
            empty="no interval or no running task",
            steps=above(2, queries.LATE),
            width=4,
        ),
        stat(
            "Success ratio",
            queries.success_ratio,
            "percentunit",
            "Successful saves divided by all finished saves in the time range. Cancelled and skipped saves do not count.",
            empty="no save in this time range",
            steps=below(0.95, 0.99),
            width=4,
        ),
        stat(
            "Last verified",
            queries.max_verified_age,
            "s",
            "Time since a checkpoint of the worst task was last read back and was correct, of the tasks that ever did; the others have a dash in the table of tasks. A checkpoint that was never read back may be unusable: run verify, or restore one.",
            empty="never verified",
            steps=above(7 * DAY, 30 * DAY),
            width=6,
        ),
        stat(
            "Consecutive failed reads",
            queries.max_failed_reads,
            COUNT,
            "Failed loads, restores, verifies or drills since the last good one, of the worst task: it cannot continue from its checkpoints. A missing checkpoint is not a failure. Look at the errors by class in Operations, and restore an older checkpoint.",
            empty="no read yet",
            steps=above(1, 1),
            width=6,
        ),
        stat(
            "Corrupted",
            queries.corruption,
            COUNT,
            "Checkpoints found in the time range whose bytes are not those that were saved. Restore an older one, keep the damaged one for analysis, and check the disk.",
            empty="no checkpoint was read yet",
            steps=above(1, 1),
            width=6,
        ),
        stat(
            "Altered states",
            queries.altered_states,
            COUNT,
            "Tasks that read back a state that is not what was saved (keys are missing, or have another type or content), and none correctly since. Stop them before they overwrite good checkpoints; the trace names the keys.",
            empty="no read yet",
            steps=above(1, 1),
            width=6,
        ),
        stat("In flight", queries.operations_in_flight, COUNT, "Operations that are running now.", empty="no known operation", width=6),
        stat(
            "Oldest in flight",
            queries.oldest_in_flight,
            "s",
            "How long the oldest running operation has been running. If this is far above its usual duration in Operations, its store probably hangs.",
            empty="no running operation",
            steps=above(600, 3600),
            width=6,
        ),
        stat(
            "Interrupted",
            queries.interruptions,
            COUNT,
            "Operations in the time range whose process died. Look for kills and out-of-memory events; the trace shows the phase.",
            empty="no operation yet",
            steps=((None, OK), (1, INTERRUPTED)),
            width=6,
        ),
        stat(
            "Storage used",
            queries.storage_used,
            "bytes",
            "Stored bytes of all observed saves minus those removed. Storage shows whether it grows.",
            empty="no save yet",
            width=6,
        ),
    ]


def _tasks() -> list[Panel]:
    columns = [
        TableColumn("State", queries.save_state, "none", texts=SAVE_STATES),
        TableColumn("Last save", queries.save_age, "s"),
        TableColumn("Work at risk", queries.work_at_risk_by_task, "s"),
        TableColumn("Interval", queries.expected_interval, "s"),
        TableColumn("Lateness", queries.lateness, "percentunit", above(2, queries.LATE)),
        TableColumn("Failed saves", queries.consecutive_failures, COUNT, above(1, 3)),
        TableColumn("Failed reads", queries.failed_reads, COUNT, above(1, 1)),
        TableColumn("Verified", queries.verified_age, "s", above(7 * DAY, 30 * DAY)),
        TableColumn("In flight", queries.in_flight_by_task, "s", above(600, 3600)),
        TableColumn("Running", queries.running_tasks, COUNT),
        TableColumn("Last size", queries.last_size, "bytes"),
    ]
    return [
        table(
            "Tasks",
            columns,
            ("job", "task"),
            "The current state of each task, the worst first. Work at risk is the time since the last good save, or since the run started if that is later; lateness is work at risk divided by the expected interval. Both are shown only while the task runs. Last save is the time since the last good save, verified and in flight the time since then; failed saves and reads are those since the last good one. A dash means unknown or none.",
            empty="no operation yet",
        ),
        states(
            "Save state by task",
            queries.save_state_history,
            SAVE_STATES,
            "The eight tasks in the worst state. failing: the last save failed. late: the task is running, and its last good save is older than two and a half intervals. silent: the task was running when its metrics were last seen; it ended or died, and can be restored from its last good save. Click to open the traces of failed operations.",
            empty="no save yet",
            traces=f"{names.OUTCOME}=error",
        ),
    ]


def _history() -> list[Panel]:
    return [
        lines(
            "Time since last good save by job",
            [queries.save_age_by_job],
            "s",
            "The task of each job with the oldest last good save; the eight jobs with the oldest. A line that keeps rising belongs to a task that does not save any more, or whose process is gone. Save state by task shows which.",
            empty="no good save yet",
        ),
        lines(
            "Save lateness by job",
            [queries.lateness_by_job],
            "percentunit",
            "The latest running task of each job: work at risk divided by the expected interval. Above the red line a save is late.",
            empty="no interval or no running task",
            steps=above(2, queries.LATE),
        ),
        bars(
            "Saves by outcome",
            [queries.saves_by_outcome],
            COUNT,
            "Finished saves in each step: the eight most frequent failures of any job, and the other saves of the eight jobs with the most. For errors, see Errors by class in Operations. interrupted: the process died.",
            empty="no save in this time range",
            width=24,
            traces=f"{names.OUTCOME}=${{__field.labels.outcome}}",
            colours=OUTCOMES,
        ),
    ]
