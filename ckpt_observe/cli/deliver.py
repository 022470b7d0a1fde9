"""`ckpt-observe deliver`: sends the records that wait in the journals to the configured exporters now, and reports what arrived.

It delivers for processes that have ended; with CKPT_OBSERVE_DELIVERY=daemon, also for running programs that wait for a daemon. Other
running programs deliver themselves: it waits for them.
"""

from __future__ import annotations

import time
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe import config, wiring
from ckpt_observe.cli.argument_types import duration
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import OK, PROBLEMS, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.next_commands import START_DAEMON, TEST_SERVERS
from ckpt_observe.cli.output import Column, print_error, print_table
from ckpt_observe.cli.trace_arguments import add_state_directory
from ckpt_observe.config import Settings
from ckpt_observe.delivery import daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.exporter_worker import RETRY_NOTICE
from ckpt_observe.query import WaitingJournal, is_received, read_waiting
from ckpt_observe.query.waiting import DAEMON
from ckpt_observe.support.formatting import format_size
from ckpt_observe.support.secrets import redact

POLL_INTERVAL: Final = 0.1
FLUSH_SECONDS: Final = 1.0
ATTEMPTS: Final = 3
"""Failures after which a server counts as down, and the command does not wait for it any longer."""


class ExporterDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What one exporter received, and what still waits for it."""

    exporter: str
    delivered_spans: int
    refused_spans: int
    """Spans that it will never accept."""
    waiting_bytes: int
    journals: int
    """Number of processes whose records wait."""
    reason: str | None
    """Why records wait. None if none do."""


JSON: Final = {"deliver": ExporterDelivery}
_COLUMNS: Final = (
    Column("EXPORTER"),
    Column("DELIVERED", "{} spans".format, align_right=True),
    Column("REFUSED", align_right=True),
    Column("WAITING", format_size, align_right=True),
    Column("REASON", lambda reason: reason or "-"),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "deliver",
        run,
        description=command_description(__doc__),
        notes="Code 0 means that everything has arrived, 3 that something still waits or was refused.",
        codes=(OK, USAGE, PROBLEMS),
        json="exporter",
    )
    parser.add_argument("--timeout", type=duration, default=30.0, metavar="TIME", help="how long to try, such as 90s (default 30s)")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Deliver, print the result by exporter, and return the exit code."""
    settings = config.read(dir=args.dir)
    before = [journal for journal in read_waiting(settings.dir) if journal.is_waiting]
    if not before:
        print_error(f"nothing waits in {settings.dir}")
        return OK
    deadline = time.monotonic() + args.timeout
    delivery = _deliver(settings, args.timeout)
    while (missing := _missing(before, settings.dir)) and any(journal.is_alive for journal in missing) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
    results = list(_results(delivery, missing))
    if args.json:
        print_structs(results)
    else:
        print_table(_COLUMNS, [(row.exporter, row.delivered_spans, row.refused_spans, row.waiting_bytes, row.reason) for row in results])
    for journal in missing:
        if journal.problem:
            print_error(f"the journal {journal.name} cannot be read: {journal.problem}")
    if missing:
        print_error(f"records of {len(missing)} process{'es' if len(missing) > 1 else ''} still wait; they are kept on disk")
        if any(worker.last_error for worker in delivery.workers):
            print_error(TEST_SERVERS)
    if refused := [row.exporter for row in results if row.refused_spans]:
        print_error(f"{', '.join(refused)} refused some spans, and will never accept them; the log above says why")
    return PROBLEMS if missing or refused else OK


def _deliver(settings: Settings, timeout: float) -> Delivery:
    """Deliver until everything has arrived, the time is over, or the servers that have not received everything have failed repeatedly."""
    deadline = time.monotonic() + timeout
    lock = daemon.acquire_daemon_lock(settings.dir) if settings.delivery == "daemon" else None
    delivery = wiring.build_daemon_delivery(settings) if lock else wiring.build_dead_delivery(settings)
    delivery.start()
    try:
        delivered = -1
        while not delivery.flush(min(FLUSH_SECONDS, max(deadline - time.monotonic(), 0.0))) and time.monotonic() < deadline:
            before, delivered = delivered, sum(worker.delivered for worker in delivery.workers)
            failing = [worker for worker in delivery.workers if worker.failing_since is not None]
            if delivered == before and failing and all(worker.retries >= ATTEMPTS for worker in failing):
                break
    finally:
        delivery.close(FLUSH_SECONDS)
        if lock:
            lock.release()
    return delivery


def _missing(before: list[WaitingJournal], state: Path) -> list[WaitingJournal]:
    """Return the journals of which something has not arrived that was there at the beginning."""
    names = {journal.name: journal for journal in before}
    now = (journal for journal in read_waiting(state) if journal.name in names and journal.is_waiting)
    return [journal for journal in now if not (journal.is_alive and is_received(names[journal.name], state))]


def _results(delivery: Delivery, missing: list[WaitingJournal]) -> Iterator[ExporterDelivery]:
    workers = {worker.identity: worker for worker in delivery.workers}
    for identity in dict.fromkeys((*workers, *(name for journal in missing for name in journal.waiting))):
        journals = [journal for journal in missing if identity in journal.waiting]
        worker = workers.get(identity)
        reason = None
        if journals:
            reason = _reason(identity, worker.last_error if worker else None, journals, is_configured=worker is not None)
        yield ExporterDelivery(
            exporter=identity.partition("@")[0],
            delivered_spans=worker.delivered if worker else 0,
            refused_spans=worker.refused if worker else 0,
            waiting_bytes=sum(journal.waiting[identity] for journal in journals),
            journals=len(journals),
            reason=reason,
        )


def _reason(identity: str, error: str | None, journals: list[WaitingJournal], *, is_configured: bool) -> str:
    if identity == DAEMON or (not is_configured and all(journal.is_for_daemon for journal in journals)):
        return f"waits for a daemon: {START_DAEMON}"
    if all(journal.is_alive for journal in journals):
        return f"running programs deliver it: process {', '.join(str(journal.pid) for journal in journals)}"
    if not is_configured:
        return "another address or key than configured here: use the settings of the program that recorded it"
    return redact(error).removesuffix(f" {RETRY_NOTICE}") if error else "not finished in time: give it more with --timeout"
