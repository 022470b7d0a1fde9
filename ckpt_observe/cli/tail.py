"""`ckpt-observe tail`: prints operations as they start and finish, one line each, until Ctrl-C.

It also delivers the records of processes that die meanwhile, so that their operations are printed as interrupted.
"""

from __future__ import annotations

import sys
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from ckpt_observe import query, wiring
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, INTERRUPTED, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import is_pipe_closed, print_error
from ckpt_observe.cli.trace_arguments import add_filters, add_state_directory, operation_filter, read_settings, short_id
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.query import Changes, ObservedOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.formatting import format_duration, format_size, format_time, printable


class OperationEvent(msgspec.Struct, frozen=True):
    """An operation or task that started or finished."""

    event: Literal["started", "finished"]
    operation: ObservedOperation


JSON: Final = {"tail": OperationEvent}


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "tail",
        run,
        description=command_description(__doc__),
        codes=(OK, ERROR, USAGE, INTERRUPTED),
        json="event",
    )
    add_filters(parser, times=False)
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Print events until somebody stops it, and return the exit code."""
    settings = read_settings(args)
    private_directory(settings.dir)
    with query.open_traces(settings.dir) as traces, wiring.delivering_dead(settings, timeout=1.0):
        matching = operation_filter(args, traces, is_following=True)
        for number, events in enumerate(events_of(traces.follow(matching=matching))):
            if number == 0:
                print_error(f"following {settings.dir}; stop with Ctrl-C")
            if args.json:
                print_structs(events)
            else:
                for event in events:
                    print(event_line(event))
            sys.stdout.flush()
            if is_pipe_closed():
                break
    return OK


def events_of(changes: Iterable[Changes]) -> Iterator[list[OperationEvent]]:
    """Yield the events of each look at the store: what finished since the last one, then what started and is still running."""
    previous: set[tuple[str, str]] = set()
    for change in changes:
        events = [OperationEvent("finished", operation) for operation in change.finished]
        running = {(operation.trace_id, operation.span_id): operation for operation in change.running}
        events += [OperationEvent("started", operation) for key, operation in running.items() if key not in previous]
        previous = set(running)
        yield events


def event_line(event: OperationEvent) -> str:
    """Return an event as a line: time, what, task, step, result, duration, size, ID."""
    operation = event.operation
    is_start = event.event == "started"
    moment = operation.start_unix_nano if is_start or operation.end_unix_nano is None else operation.end_unix_nano
    kind = operation.name if operation.kind == "operation" else operation.kind
    task = operation.task_title or operation.name
    step = operation.attributes.get(names.STEP)
    facts = [] if is_start else [format_duration(operation.seconds())]
    if not is_start and operation.stored_bytes is not None and operation.kind == "operation":
        facts.append(format_size(operation.stored_bytes))
    words = [
        format_time(moment),
        f"{'started' if is_start else operation.outcome:<11}",
        f"{kind:<8}",
        task,
        f"step {step}" if step is not None else "",
        *facts,
        "" if is_start else describe_failure(operation),
        short_id(operation),
    ]
    return printable("  ".join(filter(None, words)))


def describe_failure(operation: ObservedOperation) -> str:
    """Return error code and phase, such as `storage.no_space in write`. Empty if it did not fail."""
    code = operation.attributes.get(names.ERROR_CODE) or operation.attributes.get(names.ERROR_CLASS) or ""
    return " in ".join(filter(None, (str(code), operation.phase or "")))
