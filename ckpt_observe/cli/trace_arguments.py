"""What the commands about traces share: the arguments that select operations, the state directory, and IDs.

An ID is the beginning of a trace ID, `38095f`, or of a trace and a span ID, `38095f:3f04`, as the commands print them.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt_observe import config, libraries, query, wiring
from ckpt_observe.cli.argument_types import moment
from ckpt_observe.cli.next_commands import how_to_deliver
from ckpt_observe.cli.output import print_error
from ckpt_observe.config import Settings
from ckpt_observe.errors import AmbiguousTraceError, ConfigError, TraceNotFoundError
from ckpt_observe.query import RUNNING, ObservedOperation, OperationFilter, Trace, Traces
from ckpt_observe.semconv.values import ERROR_CLASSES, ERROR_CODES, OPERATIONS, OUTCOMES
from ckpt_observe.support.formatting import format_time, printable
from ckpt_observe.support.suggestions import suggest

ID_LENGTH: Final = 12
"""Characters of a trace ID that are printed. Two of a million traces share them with a probability of 1 in 500."""
SPAN_LENGTH: Final = 6
LOCAL: Final = "local"
"""The exporter of the store that the commands read."""
_MAX_UNOBSERVED: Final = 3
_NEXT_STEPS: Final = "try `ckpt-observe demo`, run your program with `ckpt-observe run -- ...`, or ask `ckpt-observe doctor`"


def add_state_directory(parser: ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")


def add_filters(parser: ArgumentParser, *, times: bool = True) -> None:
    """Add the options that select operations. `times`: also those for a range of time."""
    if times:
        parser.add_argument("--since", type=_unix_nano, metavar="TIME", help="only what ended since: 90s, 15m, 1h, 7d, 2026-01-31T12:00Z")
        parser.add_argument("--until", type=_unix_nano, metavar="TIME", help="only what ended before this time")
    parser.add_argument("--task", metavar="NAME", help="only this task, program or run, such as a thread of LangGraph")
    parser.add_argument("--operation", choices=OPERATIONS, metavar="NAME", help=f"only this operation: {', '.join(OPERATIONS)}")
    parser.add_argument("--outcome", choices=(*OUTCOMES, RUNNING), metavar="NAME", help=f"only: {', '.join((*OUTCOMES, RUNNING))}")
    parser.add_argument("--error", type=_error, metavar="NAME", help="only this error class or code, such as capacity or storage.no_space")
    parser.add_argument("--library", metavar="NAME", help="only this checkpoint library, such as langgraph or torch-dcp")


def operation_filter(args: Namespace, traces: Traces, *, is_following: bool = False) -> OperationFilter:
    """Return the filter for the options of `add_filters`.

    TraceNotFoundError if there is no such task or program, and ConfigError if there is no such library. `is_following`: both may still
    come, so it only prints that.
    """
    is_code = args.error in ERROR_CODES
    try:
        task = find_task(traces, args.task)
        system = _find_system(traces, args.library)
    except (TraceNotFoundError, ConfigError) as error:
        if not is_following:
            raise
        print_error(error)
        task, system = OperationFilter(task_name=args.task), _system(args.library)
    return OperationFilter(
        since_unix_nano=getattr(args, "since", None),
        until_unix_nano=getattr(args, "until", None),
        task_name=task.task_name,
        task_id=task.task_id,
        service=task.service,
        operation=args.operation,
        outcome=args.outcome,
        error_code=args.error if is_code else None,
        error_class=None if is_code else args.error,
        system=system,
    )


def find_task(traces: Traces, name: str | None) -> OperationFilter:
    """Return a filter for the task with a name, the program, or the run with an id.

    TraceNotFoundError, with a similar name, if nothing of it is recorded.
    """
    for matching in (OperationFilter(task_name=name), OperationFilter(service=name), OperationFilter(task_id=name)):
        if name is None or _is_recorded(traces, matching):
            return matching
    hint = suggest(str(name), traces.task_titles()) or "; `ckpt-observe traces` lists what is recorded"
    raise TraceNotFoundError(f"no task, program or run {name!r} is recorded{hint}")


def read_settings(args: Namespace) -> Settings:
    """Return the settings of a command that only reads what is recorded: its exporter is the local store."""
    return config.read(dir=args.dir, exporters=LOCAL)


@contextmanager
def recorded_traces(args: Namespace) -> Iterator[Traces]:
    """Open the traces of the state directory, with the operations of dead processes. TraceNotFoundError if nothing is recorded."""
    settings = read_settings(args)
    if settings.dir.exists():
        wiring.deliver_dead(settings)
    with query.open_traces(settings.dir) as traces:
        if not traces.path.exists() and not traces.running():
            print_missing(settings)
            print_unobserved(settings)
            print_omission(settings)
            raise TraceNotFoundError(f"no traces recorded yet: {traces.path} does not exist; {_NEXT_STEPS}")
        yield traces


def print_unobserved(settings: Settings) -> None:
    """Mention the programs that recorded nothing in their last run: nobody finds what is missing in a list."""
    for program in query.open_traces(settings.dir).unobserved_programs()[:_MAX_UNOBSERVED]:
        print_error(f"{format_time(program.ended_unix_nano)}: {printable(program.describe())}")


def print_missing(settings: Settings, *, elsewhere: bool = False) -> None:
    """Mention dead processes whose records are not in the local store: a daemon must deliver them, or the disk of the store is full.

    `elsewhere`: also those whose records wait for a server.
    """
    journals = [each for each in query.read_waiting(settings.dir) if not (each.is_alive or each.problem)]
    waiting = [each for each in journals if each.is_for_daemon or (elsewhere and each.waiting.keys() - {LOCAL})]
    for next_step, count in Counter(map(how_to_deliver, waiting)).items():
        print_error(f"records of dead processes ({count}) wait for a daemon or a server; to send them now, {next_step}")
    if count := sum(not each.is_for_daemon and (each.has_pages or LOCAL in each.waiting) for each in journals):
        print_error(f"records of dead processes ({count}) are not in the local store yet; to find out why, run: ckpt-observe doctor")


def print_omission(settings: Settings) -> None:
    """Mention that operations are missing because a sampler is set, so that nobody takes the numbers for all of them."""
    if omission := settings.sampler.omission(exports_failures=settings.unsampled_failures):
        print_error(omission)


def short_id(operation: ObservedOperation) -> str:
    """Return the ID of an operation as it is printed."""
    return f"{operation.trace_id[:ID_LENGTH]}:{operation.span_id[:SPAN_LENGTH]}"


def find_trace(traces: Traces, id: str) -> tuple[Trace, ObservedOperation | None]:
    """Return the trace with an ID, and the operation if the ID names one. TraceNotFoundError or AmbiguousTraceError if there is not one."""
    trace_id, _, span_id = id.partition(":")
    trace = traces.trace(trace_id)
    if not span_id:
        return trace, None
    operations = [operation for operation in trace.operations if operation.span_id.startswith(span_id.lower())]
    if len(operations) == 1:
        return trace, operations[0]
    if operations:
        raise AmbiguousTraceError(f"{id!r} is ambiguous; it matches: {', '.join(map(short_id, operations))}")
    raise TraceNotFoundError(f"no operation of trace {trace.summary.trace_id} has a span ID that starts with {span_id!r}")


def _unix_nano(text: str) -> int:
    return int(moment(text).timestamp() * 1e9)


def _error(text: str) -> str:
    if text not in ERROR_CODES and text not in ERROR_CLASSES:
        hint = suggest(text, (*ERROR_CLASSES, *ERROR_CODES))
        raise ArgumentTypeError(f"{text!r} is not an error class or code{hint}; docs/semconv.md lists them")
    return text


def _find_system(traces: Traces, name: str | None) -> str | None:
    """Return the value of `checkpoint.system` for the name of a library, or for such a value itself. ConfigError if there is none."""
    system = _system(name)
    names = (*libraries.LIBRARIES, libraries.CUSTOM)
    systems = (*map(libraries.system_of, names), *libraries.names())
    if system is None or system in systems or _is_recorded(traces, OperationFilter(system=system)):  # own code may record any value
        return system
    raise ConfigError(f"--library: {name!r} is not a checkpoint library{suggest(str(name), names)}; use one of: {', '.join(names)}")


def _system(name: str | None) -> str | None:
    return libraries.system_of(name) if name in libraries.LIBRARIES else name


def _is_recorded(traces: Traces, matching: OperationFilter) -> bool:
    return next(traces.operations(matching, phases=False), None) is not None
