"""What waits in the journals: whose they are, whether the owner lives, and what each destination has not had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from ckpt_observe.config import Settings
from ckpt_observe.delivery import daemon, outbox
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.journal import spool
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED, read_about
from ckpt_observe.journal.page_reader import page_files
from ckpt_observe.support.locks import is_locked


def backlog(settings: Settings) -> Iterator[Finding]:
    """One line for each journal in which something waits, or whose owner is dead; one for all of them."""
    root = settings.dir / JOURNALS
    entries = [entry for entry in sorted(root.iterdir()) if not entry.name.endswith(UNFINISHED)] if root.is_dir() else []
    live = dead = waiting = 0
    for entry in entries:
        try:
            alive = _is_alive(entry)
            finding, size = _journal(entry, alive)
        except (CkptObserveError, OSError) as error:
            if entry.exists():  # else it was delivered and removed while we looked
                yield Finding(PROBLEM, f"journal {entry.name}", str(error))
            continue
        live, dead, waiting = live + alive, dead + (not alive), waiting + size
        if finding is not None:
            yield finding
    yield Finding(OK, "journals", f"{live} of live processes, {dead} left by dead ones, {waiting >> 10} KiB on disk")
    for_daemon = sum(_is_for_daemon(entry) for entry in entries)
    if for_daemon or settings.delivery == "daemon":
        yield _daemon(settings.dir, for_daemon)


def _journal(directory: Path, alive: bool) -> tuple[Finding | None, int]:
    """What is worth saying of one, and its size on disk."""
    about = read_about(str(directory))
    size = spool.size(str(directory))
    owed_to = outbox.exporters_with_cursor(str(directory)) if about.delivery == "daemon" else about.exporters
    behind = {key.partition("@")[0]: left for key, left in outbox.backlog(str(directory), owed_to).items() if left}
    if about.delivery == "daemon" and not owed_to and size:
        behind = {"a daemon": size}  # none has been there yet, so nobody knows its exporters
    in_memory = not alive and bool(page_files(about.pages))  # nobody has looked yet what its end cut short
    waits = [f"{left / 1024:.1f} KiB for {exporter}" for exporter, left in sorted(behind.items())] + ["what it held in memory"] * in_memory
    owed = ", ".join(waits) or "nothing"
    owner = f"of process {about.pid} ({about.resource.get('service.name', '?')}), {'alive' if alive else 'dead'}"
    if size > outbox.SPOOL_LIMIT // 2:
        full = f"{size * 100 // outbox.SPOOL_LIMIT} % full: at 100 % the oldest are dropped"
        return Finding(PROBLEM, f"journal {directory.name}", f"{owner}; waiting: {owed}; {full}"), size
    if not alive:
        others = "the next observed program takes it over, and `ckpt-observe traces` what is for the local store"
        next_step = "the daemon takes it over" if about.delivery == "daemon" else others
        return Finding(NOTE, f"journal {directory.name}", f"{owner}; waiting: {owed}; {next_step}"), size
    return Finding(OK, f"journal {directory.name}", f"{owner}; waiting: {owed}") if behind else None, size


def _daemon(state: Path, journals: int) -> Finding:
    if daemon.is_running(state):
        return Finding(OK, "daemon", f"one is running for {state}; journals of its programs: {journals}")
    return Finding(
        PROBLEM, "daemon", f"none is running, journals that wait for one: {journals}; start it: ckpt-observe daemon --dir {state}"
    )


def _is_for_daemon(directory: Path) -> bool:
    try:
        return read_about(str(directory)).delivery == "daemon"
    except CkptObserveError:
        return False


def _is_alive(directory: Path) -> bool:
    """By the lock that the kernel gives back at death: a pid may be another's by now."""
    return is_locked(os.path.join(directory, "owner.lock"))
