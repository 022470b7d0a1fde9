"""`ckpt-observe drill`: rehearses a restart. It loads and checks the newest checkpoint of each task, and records age and time to recover.

The drill of a task is an operation `drill` in a trace, with metrics. Run it on a schedule: deploy/ has examples for cron, systemd and
Kubernetes.
"""

from __future__ import annotations

import datetime as dt
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

import ckpt_observe
from ckpt_observe.api import observe_environment
from ckpt_observe.cli.argument_types import duration
from ckpt_observe.cli.checkpoint_source import add_store, check_task, require_checkpointer
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, PROBLEMS, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, print_error, print_table, progress
from ckpt_observe.cli.store_listing import format_optional
from ckpt_observe.core import Checkpointer, Drill
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError
from ckpt_observe.support.formatting import format_duration, format_size

_CLOSE_TIMEOUT: Final = 5.0
"""Seconds to deliver the traces. The rest waits on disk for the next observed program or a daemon."""


class DrillResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a task could be restarted from its newest checkpoint, to when, and how fast."""

    task: str
    state: Literal["ok", "late", "altered", "failed"]
    """`late`: older or slower than allowed. `altered`: some keys come back different. `failed`: it cannot be loaded."""
    id: str = ""
    step: int | None = None
    created: dt.datetime | None = None
    age: float | None = None
    """Seconds since the checkpoint was saved: the work that a crash now would lose."""
    recovery_time: float | None = None
    """Seconds to read, check and decode it."""
    stored_size: int | None = None
    altered: tuple[str, ...] = ()
    """Top-level keys that come back different."""
    code: str = ""
    message: str = ""
    trace_id: str = ""


JSON: Final = {"drill": DrillResult}
_STYLES: Final = {"ok": "green", "late": "yellow", "altered": "bold red", "failed": "bold red"}
_COLUMNS: Final = (
    Column("STATE", style=_STYLES.__getitem__),
    Column("TASK"),
    Column("ID", whole=True),
    Column("STEP", format_optional, align_right=True),
    Column("AGE", lambda seconds: "" if seconds is None else format_duration(seconds), align_right=True),
    Column("RECOVERY", lambda seconds: "" if seconds is None else format_duration(seconds), align_right=True),
    Column("STORED", lambda size: "" if size is None else format_size(size), align_right=True),
    Column("DETAIL"),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "drill",
        run,
        description=command_description(__doc__),
        notes="CKPT_OBSERVE_EXPORTERS says where trace and metrics go; CKPT_OBSERVE_ENABLED=false records nothing.",
        codes=(OK, ERROR, USAGE, PROBLEMS, NOT_FOUND),
        json="result",
    )
    add_store(parser)
    parser.add_argument("task", nargs="?", metavar="TASK", help="only this task")
    parser.add_argument("--max-age", type=duration, metavar="AGE", help="a checkpoint older than AGE, such as 30m or 2h, is a problem")
    parser.add_argument("--max-time", type=duration, metavar="TIME", help="a recovery that takes longer than TIME is a problem")


def run(args: Namespace) -> int:
    """Drill each task and print the results."""
    watch = observe_environment()
    try:
        with require_checkpointer(args.store, "drill") as checkpointer:
            results = list(_drill_all(checkpointer, args))
    finally:
        is_delivered = watch.close(_CLOSE_TIMEOUT)
    if args.json:
        print_structs(results)
    else:
        rows = ((r.state, r.task, r.id, r.step, r.age, r.recovery_time, r.stored_size, _detail(r, args)) for r in results)
        print_table(_COLUMNS, rows)
    if not is_delivered:
        print_error("an exporter has not received everything yet; the rest is kept on disk and sent by the next observed program")
    return OK if all(result.state == "ok" for result in results) else PROBLEMS


def _drill_all(checkpointer: Checkpointer, args: Namespace) -> Iterator[DrillResult]:
    tasks = checkpointer.store.tasks() if args.task is None else (check_task(checkpointer, args.task),)
    if not tasks:
        raise CheckpointNotFoundError(f"{checkpointer.store.location} has no checkpoint, so nothing can be restored from it")
    with progress("Drilling", len(tasks)) as advance:
        for task in tasks:
            yield _drill(checkpointer, task, args)
            advance()


def _drill(checkpointer: Checkpointer, task: str, args: Namespace) -> DrillResult:
    trace_id = ""
    try:
        with ckpt_observe.task(task, id=task) as scope:
            trace_id = scope.trace_id
            return _from_drill(checkpointer.drill(task), trace_id, args)
    except CheckpointError as error:
        id = error.checkpoint_id or ""
        return DrillResult(task=task, state="failed", id=id, code=error.code, message=str(error), trace_id=trace_id)


def _from_drill(drill: Drill, trace_id: str, args: Namespace) -> DrillResult:
    info = drill.info
    is_late = _exceeds(drill.age, args.max_age) or _exceeds(drill.seconds, args.max_time)
    return DrillResult(
        task=info.task,
        state="altered" if drill.altered else "late" if is_late else "ok",
        id=info.id,
        step=info.step,
        created=info.created,
        age=drill.age,
        recovery_time=drill.seconds,
        stored_size=info.stored_size,
        altered=drill.altered,
        trace_id=trace_id,
    )


def _exceeds(seconds: float, limit: float | None) -> bool:
    return limit is not None and seconds > limit


def _detail(result: DrillResult, args: Namespace) -> str:
    if result.altered:
        return f"not as saved: {', '.join(result.altered)}"
    if result.age is not None and _exceeds(result.age, args.max_age):
        return f"older than {format_duration(args.max_age)}"
    if result.recovery_time is not None and _exceeds(result.recovery_time, args.max_time):
        return f"takes longer than {format_duration(args.max_time)}"
    return result.message
