"""Checks of the state directory: whether it, the pages and the trace store can be written, and what waits in the journals."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Final

from ckpt_observe import environment, query
from ckpt_observe.cli.doctor import NOTE, OK, PROBLEM, Diagnosis
from ckpt_observe.cli.next_commands import how_to_deliver
from ckpt_observe.config import Settings
from ckpt_observe.delivery import daemon, outbox
from ckpt_observe.errors import CkptObserveError, JournalError
from ckpt_observe.journal import locations
from ckpt_observe.journal.directory import JOURNALS
from ckpt_observe.journal.fallback import fallback_directories, usable_directory
from ckpt_observe.journal.locations import file_system, has_private_shared_memory, is_on_volume, page_places, private_directory
from ckpt_observe.query import WaitingJournal
from ckpt_observe.query.waiting import DAEMON
from ckpt_observe.support.formatting import format_count, format_size, format_time
from ckpt_observe.tracestore import FILENAME, TraceWriter

_PROBE: Final = b"x" * 4096


def check_directories(settings: Settings) -> Iterator[Diagnosis]:
    """Report whether the state directory, the directory of the pages and, if used, the trace store can be written."""
    finding = _attempt("state directory", lambda: _check_state_directory(settings.dir))
    yield finding
    if finding.state == PROBLEM:
        yield _attempt("other directory", lambda: _check_fallback(settings.dir))
    yield _attempt("pages", lambda: _check_pages(settings))
    if "local" in settings.exporters:
        yield _attempt("trace store", lambda: _check_trace_store(settings.dir))


@contextmanager
def without_new_directories(settings: Settings) -> Iterator[None]:
    """Remove the directories that the checks of the block create. One that is in use by then is not empty, and stays."""
    state_directories = (settings.dir, *fallback_directories())
    leaves = [state / name for state in state_directories for name in (JOURNALS, locations.PAGES)]
    leaves += [locations.shared_directory(), *filter(None, (settings.pages_dir,))]
    candidates = dict.fromkeys(path for leaf in leaves for path in (leaf, *leaf.parents))  # children before their parents
    absent = [path for path in candidates if not os.path.lexists(path)]
    try:
        yield
    finally:
        for path in absent:
            with suppress(OSError):
                path.rmdir()


def write_probe(directory: Path) -> None:
    """Write a test file to the directory, sync it to disk, and remove it. OSError if that fails."""
    probe = directory / f"probe-{os.getpid()}"
    try:
        with probe.open("xb") as file:
            file.write(_PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(directory)  # a failed write, as on a full disk, does not name the file
        raise
    finally:
        probe.unlink(missing_ok=True)


def _attempt(subject: str, check: Callable[[], tuple[str, str]]) -> Diagnosis:
    try:
        state, detail = check()
    except CkptObserveError as error:
        return Diagnosis(PROBLEM, subject, str(error))
    except OSError as error:
        return Diagnosis(PROBLEM, subject, f"{error.filename}: {error.strerror}")
    return Diagnosis(state, subject, detail)


def _check_state_directory(directory: Path) -> tuple[str, str]:
    private_directory(directory)
    write_probe(directory)
    status = os.statvfs(directory)
    free, limit = status.f_bavail * status.f_frsize, outbox.SPOOL_LIMIT
    detail = f"{directory} is writable, {free >> 20} MiB free"
    return (OK, detail) if free >= limit else (NOTE, f"{detail}; while a backend is down, a process may need {limit >> 20} MiB")


def _check_fallback(configured: Path) -> tuple[str, str]:
    try:
        directory, _ = usable_directory(configured)
    except JournalError:
        return PROBLEM, "none can be written, so programs keep records in memory until they are delivered; nothing survives a crash"
    if directory == configured:  # a journal is a directory, which a full disk may still have room for
        return NOTE, f"none is used: running programs keep records in memory until {directory} can be written; new ones may record nothing"
    command = f"ckpt-observe traces --dir {quote(str(directory))}"
    return NOTE, f"programs use {directory} meanwhile, which may not survive a restart; see: {command}"


def _check_pages(settings: Settings) -> tuple[str, str]:
    directory, mapped = page_places(settings.dir, settings.pages_dir)[0]
    write_probe(directory)
    access = "mapped" if mapped else "written with pwrite, which is slower, because mapped files are not safe on this file system"
    state, coverage = _describe_coverage(settings.dir, directory)
    return state, f"{directory} on {file_system(directory) or sys.platform}, {access}; {coverage}"


def _describe_coverage(state: Path, pages: Path) -> tuple[str, str]:
    """Say which kinds of death running operations survive, and what to do about the others."""
    if has_private_shared_memory() and not is_on_volume(state):
        remedy = "set CKPT_OBSERVE_DIR to a directory on a volume"
        return NOTE, f"running operations survive the death of the process, but undelivered records end with this container: {remedy}"
    if has_private_shared_memory() and pages.is_relative_to(locations.SHARED_MEMORY):
        remedy = "unset CKPT_OBSERVE_PAGES_DIR, so that pages are in the state directory"
        return NOTE, f"running operations survive the death of the process, but not the last second the end of this container: {remedy}"
    return OK, "running operations survive the death of the process, and all but the last second that of the machine"


def _check_trace_store(directory: Path) -> tuple[str, str]:
    path = directory / FILENAME
    if not path.exists():
        write_probe(directory)
        return OK, f"{path} will be created with the first trace"
    writer = TraceWriter(path)
    try:
        writer.write(())  # an empty transaction: fails if the store is locked, damaged or read-only, and changes nothing
    finally:
        writer.close()
    return OK, f"{path} is writable, {format_size(path.stat().st_size)}"


def check_journals(settings: Settings) -> Iterator[Diagnosis]:
    """Report each journal that has a backlog or whose process is dead, a summary, and whether a daemon is running if one is needed."""
    live = dead = total_size = daemon_journals = 0
    for journal in query.read_waiting(settings.dir):
        if journal.problem is not None:
            yield Diagnosis(PROBLEM, f"journal {journal.name}", journal.problem)
            continue
        live, dead, total_size = live + journal.is_alive, dead + (not journal.is_alive), total_size + journal.size
        daemon_journals += journal.is_for_daemon
        finding = _check_journal(journal)
        if finding is not None:
            yield finding
    yield Diagnosis(OK, "journals", f"{live} of live processes, {dead} of dead processes, {format_size(total_size)} on disk")
    if daemon_journals or settings.delivery == "daemon":
        yield _check_daemon(settings.dir, daemon_journals)


def check_records(settings: Settings) -> Iterator[Diagnosis]:
    """Report how much the local store contains, and the programs that recorded nothing in their last run."""
    with query.open_traces(settings.dir) as traces:
        totals = traces.totals()
        newest = "".join(f", the newest from {format_time(trace.end_unix_nano)}" for trace in traces.traces(limit=1))
    if traces.path.exists():
        count = f"{format_count(totals.operations, 'operation')} in {format_count(totals.traces, 'trace')}"
        yield Diagnosis(OK, "recorded", f"{count}{newest}; show them with: ckpt-observe traces")
        for removal in totals.removed:
            setting = environment.TRACE_DAYS if removal.reason == "age" else environment.TRACE_LIMIT
            count = f"{format_count(removal.traces, 'trace')}, {format_count(removal.operations, 'operation')}"
            last = format_time(removal.last_unix_nano)
            yield Diagnosis(OK, "removed", f"because of their {removal.reason} ({setting}): {count}, last at {last}")
    else:
        yield Diagnosis(OK, "recorded", "nothing yet in the local store; try: ckpt-observe demo")
    for program in traces.unobserved_programs():
        yield Diagnosis(NOTE, f"program {program.service}", f"{format_time(program.ended_unix_nano)}: {program.describe()}")


def _check_journal(journal: WaitingJournal) -> Diagnosis | None:
    """Return a finding, or None if there is nothing to report."""
    parts = [f"{format_size(count)} for {_exporter(identity)}" for identity, count in sorted(journal.waiting.items())]
    if journal.has_pages:
        parts.append("operations in memory")  # not yet recovered
    owner = f"process {journal.pid} ({journal.service or '?'}), {'alive' if journal.is_alive else 'dead'}"
    detail = f"{owner}; waiting: {', '.join(parts) or 'nothing'}"
    subject = f"journal {journal.name}"
    if journal.missed_operations:
        reason = "because the journal could not be created at once (see the log)"
        detail += f"; its first {journal.missed_operations} operations were not recorded, {reason}"
    if journal.size > outbox.SPOOL_LIMIT // 2:
        percentage = journal.size * 100 // outbox.SPOOL_LIMIT
        return Diagnosis(PROBLEM, subject, f"{detail}; {percentage} % full: at 100 % the oldest records are dropped")
    if not journal.is_alive:
        by_program = f"the next program with the same exporters sends them; to send them now, {how_to_deliver(journal)}"
        next_step = "the daemon delivers it" if journal.is_for_daemon else by_program
        return Diagnosis(NOTE, subject, f"{detail}; {next_step}")
    if journal.missed_operations:
        return Diagnosis(PROBLEM, subject, detail)
    return Diagnosis(OK, subject, detail) if journal.waiting else None


def _exporter(identity: str) -> str:
    """Return the name of an exporter. No daemon may have read the journal yet; then its exporters are unknown."""
    return "a daemon" if identity == DAEMON else identity.partition("@")[0]


def _check_daemon(state: Path, journals: int) -> Diagnosis:
    if daemon.is_running(state):
        return Diagnosis(OK, "daemon", f"running for {state}; journals that it delivers: {journals}")
    return Diagnosis(
        PROBLEM,
        "daemon",
        f"not running; journals that wait for it: {journals}; start it with: ckpt-observe daemon --dir {quote(str(state))}",
    )
