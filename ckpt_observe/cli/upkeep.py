"""`ckpt-observe verify` and `prune`: checks stored checkpoints, and removes those that a policy does not keep."""

from __future__ import annotations

import datetime as dt
import random
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, Literal

import msgspec

from ckpt_observe import readers
from ckpt_observe.cli.argument_types import byte_count, duration, positive_count
from ckpt_observe.cli.checkpoint_source import add_store, check_task, open_checkpointer, printed_location, require_checkpointer
from ckpt_observe.cli.commands import add_command
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, PROBLEMS, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, drop_empty_columns, print_error, print_table, progress
from ckpt_observe.cli.store_listing import format_moment, format_optional
from ckpt_observe.core import Checkpointer, Finding, steps
from ckpt_observe.core.retention import Decision, KeepEvery, KeepFor, KeepLast, KeepTagged, KeepWithin, Retention
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, CompressionError, ConfigError, IntegrityError
from ckpt_observe.support.formatting import format_size


class VerifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of checking one checkpoint, or a file or database of another library."""

    task: str = ""
    id: str
    state: Literal["good", "altered", "damaged"]
    """`altered`: its bytes are intact, but some values come back with another type, or not at all."""
    checked: Literal["content", "structure"]
    """`structure`: of formats that cannot be loaded without executing them, sizes, directories and checksums of the structure."""
    code: str = ""
    message: str = ""
    altered: tuple[str, ...] = ()
    """Top-level keys that come back different."""
    quarantined: bool = False


class PruneDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happens to one checkpoint, and why."""

    task: str
    id: str
    created: dt.datetime
    step: int | None = None
    stored_size: int
    keep: bool
    reason: str
    removed: bool = False


JSON: Final = {"verify": VerifiedCheckpoint, "prune": PruneDecision}
_STYLES: Final = {"good": "green", "altered": "yellow", "damaged": "bold red", "keep": "green", "remove": "red"}
_POLICIES: Final = {
    "keep_last": KeepLast,
    "keep_every": KeepEvery,
    "keep_for": KeepFor,
    "keep_within": KeepWithin,
    "keep_tag": KeepTagged,
}


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the commands."""
    _register_verify(subparsers)
    _register_prune(subparsers)


def _register_verify(subparsers: _SubParsersAction[Any]) -> None:
    parser = add_command(
        subparsers,
        "verify",
        run_verify,
        description="Reads and checks every checkpoint of a store or task as a load does. Of a file or database of another library, "
        "checks the structure, without executing it.",
        codes=(OK, ERROR, USAGE, PROBLEMS, NOT_FOUND),
        json="checkpoint",
    )
    add_store(parser)
    parser.add_argument("task", nargs="?", metavar="TASK", help="only this task")
    parser.add_argument("--sample", type=positive_count, metavar="N", help="check only N checkpoints, chosen at random")
    parser.add_argument("--quarantine", action="store_true", help="move damaged checkpoints aside, without losing a byte")


def _register_prune(subparsers: _SubParsersAction[Any]) -> None:
    parser = add_command(
        subparsers,
        "prune",
        run_prune,
        description="Shows which checkpoints the policy keeps and removes, with a reason for each. Removes them only with --yes.",
        notes="What one of the options keeps stays. The newest checkpoint of a task and the bases of incremental ones always stay, "
        "and so do all checkpoints of a task whose newest one is damaged.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="decision",
    )
    add_store(parser)
    parser.add_argument("task", nargs="?", metavar="TASK", help="only this task")
    parser.add_argument("--keep-last", type=positive_count, metavar="N", help="keep the newest N of each task")
    parser.add_argument("--keep-every", type=positive_count, metavar="N", help="keep those whose step is a multiple of N")
    parser.add_argument("--keep-for", type=duration, metavar="AGE", help="keep those that are younger than AGE, such as 12h or 7d")
    parser.add_argument(
        "--keep-within", type=byte_count, metavar="SIZE", help="keep the newest of each task that together take at most SIZE"
    )
    parser.add_argument("--keep-tag", metavar="TAG", help="keep those with this tag")
    parser.add_argument("--yes", action="store_true", help="really remove them")


def run_verify(args: Namespace) -> int:
    """Check the checkpoints and print the results."""
    results = _verify(args)
    if args.json:
        print_structs(results)
    else:
        columns = (Column("STATE", style=_STYLES.__getitem__), Column("TASK"), Column("ID", whole=True), Column("DETAIL"))
        bad = [result for result in results if result.state != "good"]
        if bad:
            print_table(*drop_empty_columns(columns, [(result.state, result.task, result.id, _detail(result)) for result in bad]))
        if [result.checked for result in results] == ["structure"]:
            print_error(f"checked the structure of {results[0].id}: {results[0].state}")
        else:
            print_error(f"checkpoints checked: {len(results)}; good: {len(results) - len(bad)}, with problems: {len(bad)}")
    return PROBLEMS if any(result.state != "good" for result in results) else OK


def _verify(args: Namespace) -> list[VerifiedCheckpoint]:
    try:
        checkpointer = open_checkpointer(args.store)
    except (IntegrityError, CompressionError) as error:  # damaged so badly that its format cannot be recognized
        return [_damaged(args.store, error)]
    if checkpointer is None:
        return [_verify_foreign(args)]
    with checkpointer:
        return _verify_all(checkpointer, args)


def _verify_all(checkpointer: Checkpointer, args: Namespace) -> list[VerifiedCheckpoint]:
    tasks = None if args.task is None else (check_task(checkpointer, args.task),)
    names = steps.list_names(checkpointer.store, tasks)
    if args.sample is not None and args.sample < len(names):
        names = random.SystemRandom().sample(names, args.sample)
    results: list[VerifiedCheckpoint] = []
    with progress("Checking", len(names)) as advance:
        for task, id in names:
            try:
                results += map(_from_finding, checkpointer.verify(task, id, quarantine=args.quarantine))
            except CheckpointNotFoundError:
                pass  # removed since it was listed
            advance()
    return results


def _from_finding(finding: Finding) -> VerifiedCheckpoint:
    return VerifiedCheckpoint(
        task=finding.task,
        id=finding.id,
        state="damaged" if not finding.good else "altered" if finding.altered else "good",
        checked="content",
        code=finding.code,
        message=finding.message,
        altered=finding.altered,
        quarantined=finding.quarantined,
    )


def _verify_foreign(args: Namespace) -> VerifiedCheckpoint:
    if args.sample is not None or args.quarantine:
        raise ConfigError("--sample and --quarantine need a store of ckpt_observe.core. Leave them out to check the structure")
    try:
        readers.read(args.store, depth=100, task=args.task)
    except (IntegrityError, CompressionError) as error:
        return _damaged(args.store, error)
    return VerifiedCheckpoint(id=printed_location(args.store), state="good", checked="structure")


def _damaged(location: str, error: CheckpointError) -> VerifiedCheckpoint:
    return VerifiedCheckpoint(id=printed_location(location), state="damaged", checked="structure", code=error.code, message=str(error))


def _detail(result: VerifiedCheckpoint) -> str:
    if result.altered:
        return f"not as saved: {', '.join(result.altered)}"
    return f"{result.code}: {result.message}{' (moved aside)' if result.quarantined else ''}"


def run_prune(args: Namespace) -> int:
    """Print the decisions and, with --yes, carry them out."""
    with require_checkpointer(args.store, "prune", _policy(args)) as checkpointer:
        tasks = checkpointer.store.tasks() if args.task is None else (check_task(checkpointer, args.task),)
        decisions = [decision for task in tasks for decision in _prune_task(checkpointer, task, remove=args.yes)]
    if args.json:
        print_structs(decisions)
    elif decisions:
        columns = (
            Column("ACTION", lambda keep: "keep" if keep else "remove", style=lambda keep: _STYLES["keep" if keep else "remove"]),
            Column("TASK"),
            Column("ID", whole=True),
            Column("CREATED", format_moment, whole=True),
            Column("STEP", format_optional, align_right=True),
            Column("STORED", format_size, align_right=True),
            Column("REASON"),
        )
        print_table(columns, ((d.keep, d.task, d.id, d.created, d.step, d.stored_size, d.reason) for d in decisions))
    chosen = [decision for decision in decisions if (decision.removed if args.yes else not decision.keep)]
    verb, advice = ("removed", "") if args.yes else ("would remove", "; nothing was removed: repeat the command with --yes to do it")
    print_error(f"{verb} {len(chosen)} of {len(decisions)} checkpoints ({format_size(sum(d.stored_size for d in chosen))}){advice}")
    return OK


def _policy(args: Namespace) -> Retention:
    policies: list[Retention] = [kind(getattr(args, name)) for name, kind in _POLICIES.items() if getattr(args, name) is not None]
    if not policies:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in _POLICIES)
        raise ConfigError(f"say what to keep, with one or more of: {options}")
    return reduce(or_, policies)


def _spare_if_damaged(checkpointer: Checkpointer, task: str, plan: Sequence[Decision]) -> Sequence[Decision]:
    """Keep everything if the newest checkpoint is damaged: the older ones are then all that can be restored."""
    if all(decision.keep for decision in plan):
        return plan
    try:
        checkpointer.drill(task)
    except IntegrityError as error:
        return [Decision(decision.info, True, f"the newest checkpoint is damaged ({error.code})") for decision in plan]
    except CheckpointError:
        pass  # it cannot be read here, for example without its key: that does not say that it is damaged
    return plan


def _prune_task(checkpointer: Checkpointer, task: str, *, remove: bool) -> Iterator[PruneDecision]:
    plan = _spare_if_damaged(checkpointer, task, checkpointer.plan(task))
    removed_ids = {info.id for info in checkpointer.prune(task, plan)} if remove else set()
    for info, keep, reason in plan:
        yield PruneDecision(
            task=task,
            id=info.id,
            created=info.created,
            step=info.step,
            stored_size=info.stored_size,
            keep=keep,
            reason=reason,
            removed=info.id in removed_ids,
        )
