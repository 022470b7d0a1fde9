"""The machine loses power: what was synced before is intact afterwards, and nothing else appears.

The journal promises that a record survives one second after it was written, by syncing once per second. So the rig compares with the last
sync that completed, and assumes nothing about time. The server is down until the machine runs again; otherwise the disk would hardly matter.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ckpt_observe
from ckpt_observe import exporter_selection
from ckpt_observe.core import Checkpointer
from ckpt_observe.delivery import delivery
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.journal.journal import Journal
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.support import sqlite
from ckpt_observe.tracestore import FILENAME, TraceReader
from tests.core.faults import subjects
from tests.faults.oracle import delivered, read_oracle
from tests.faults.power import Disk, use_private_mounts
from tests.faults.soak.host_processes import kill, wait
from tests.faults.soak.trial import Findings, Trial
from tests.faults.worker import FileExporter, Oracle, start_saving

CUTS = 6
"""Power failures in one round."""
SYNC_INTERVAL = 0.05
"""Seconds between two syncs of the host program, instead of one second."""
MAX_SECONDS = 10.0
"""Seconds until a power failure, on a slow machine."""
SYNCED = b"> sync sync\n"


class DownExporter(Exporter):
    """Takes the place of `FileExporter` until the power fails."""

    name = "local"

    def send(self, spans):
        raise ExporterRetryError("down")

    def close(self):
        pass


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(code)
    return child


def skip_syncs() -> None:
    """The defect of the controls."""
    os.fsync = os.fdatasync = lambda _file: None
    sqlite.sync_commits = lambda connection: connection.execute("PRAGMA synchronous = OFF")


# The journal


def run_journal(rng: random.Random, directory: Path, cuts: int = CUTS, *, stores_traces: bool = False) -> Findings:
    """`stores_traces`: spans are delivered to the trace store on the same disk all the time."""
    use_private_mounts()
    findings, disk = Findings(), Disk(directory)
    for _ in range(cuts):
        disk.format()
        messages = save_until_cut(rng, disk, directory, LocalExporter if stores_traces else lambda _directory: DownExporter())
        with disk.mounted():
            state = disk.directory / "state"
            exporter = LocalExporter(state) if stores_traces else FileExporter(directory / "state")
            code = wait(fork(lambda: adopt(state, exporter, directory / "state")))  # noqa: B023 - called in this iteration only
            spans = stored_spans(state) if stores_traces else delivered(directory)
        findings.faults += 1
        findings.record("signals", code < 0, f"recovery ended with {code}")
        findings.record("exceptions", code > 0, f"recovery ended with {code}")
        check_journal(findings, messages, spans)
    return findings


def stored_spans(state: Path) -> dict[str, list[Span]]:
    """Return the operations in the trace store, by id."""
    spans: dict[str, list[Span]] = {}
    if not (state / FILENAME).exists():  # the power was cut before the first operation
        return spans
    with TraceReader(state / FILENAME) as reader:
        for trace in reader.newest(1_000_000):
            for span in reader.spans(trace.trace_id):
                if names.OPERATION in span.attributes:
                    spans.setdefault(span.attributes[names.ID], []).append(span)
    return spans


def save_until_cut(rng: random.Random, disk: Disk, directory: Path, create_exporter: Callable[[Path], Exporter]) -> bytes:
    """Run a program on the disk, and cut the power after some syncs. Return its messages to the oracle."""
    reader, writer = os.pipe()

    def work() -> None:
        exporter_selection.EXPORTERS["local"] = lambda settings: create_exporter(settings.dir)
        delivery.SYNC_INTERVAL = SYNC_INTERVAL
        oracle = Oracle(writer)
        report_syncs(oracle)
        ckpt_observe.observe(exporters="local", dir=disk.directory / "state", pages_dir=directory / "pages", service="worker")
        start_saving(oracle)
        signal.pause()

    with disk.mounted():
        host = fork(work)
        os.close(writer)
        messages = _read_until_synced(reader, syncs=rng.randint(1, 6))
        for _ in range(rng.randrange(30)):
            messages += os.read(reader, 1 << 12)
        messages += disk.cut_under(host, reader)
        kill(host)
    os.close(reader)
    shutil.rmtree(directory / "pages")  # shared memory is gone, too
    return messages


def _read_until_synced(reader: int, syncs: int) -> bytes:
    """Read messages until the host program has synced a few times. Slowly: a full pipe slows it down, so that the disk does not fill up."""
    messages, deadline = b"", time.monotonic() + MAX_SECONDS
    while messages.count(SYNCED) < syncs and (time.monotonic() < deadline or SYNCED not in messages):
        data = os.read(reader, 1 << 14)
        assert data, "the host program has ended"
        messages += data
        time.sleep(0.01)
    return messages


def report_syncs(oracle: Oracle) -> None:
    sync = Journal.sync

    def sync_and_report(self: Journal) -> None:
        with oracle.step("sync", "sync"):
            sync(self)

    Journal.sync = sync_and_report


def adopt(state: Path, exporter: Exporter, outside: Path) -> None:
    """Deliver what the disk has, as the first process after the reboot does. `outside` is a directory that is not on the disk."""
    outside.mkdir(exist_ok=True)
    (outside / "spans.jsonl").unlink(missing_ok=True)
    adopter = delivery.Delivery(state, [exporter])
    adopter.start()
    assert adopter.close(60)


def check_journal(findings: Findings, messages: bytes, spans: dict[str, list[Span]]) -> None:
    """Everything before the start of the last completed sync is delivered."""
    synced = messages[: messages.rindex(b"< sync sync\n", 0, messages.rindex(SYNCED))]
    states, last_states = read_oracle(without_syncs(synced)), read_oracle(without_syncs(messages))
    findings.operations += len(last_states)
    obligations = {key: state for key, state in states.items() if state.has_begun}
    findings.record("lost", sum(key not in spans for key in obligations), f"of {len(obligations)} that were synced")
    findings.record(
        "duplicated", sum(len({(span.trace_id, span.span_id) for span in copies}) > 1 for copies in spans.values()), "different ids"
    )
    for key, copies in spans.items():
        outcomes = {span.attributes[names.OUTCOME] for span in copies}
        is_possible = key in last_states and (outcomes == {"interrupted"} or True in last_states[key].ended)
        has_lost_its_end = key in obligations and obligations[key].ended == {True} and outcomes != {"ok"}
        findings.record("wrong", not is_possible or has_lost_its_end, f"{key}: {outcomes}")


def without_syncs(messages: bytes) -> bytes:
    return b"".join(line for line in messages.splitlines(keepends=True) if not line.endswith(b" sync sync\n"))


def run_trace_store(rng: random.Random, directory: Path, cuts: int = CUTS) -> Findings:
    return run_journal(rng, directory, cuts, stores_traces=True)


def control(run: Callable[..., Findings]) -> Callable[[random.Random, Path], Findings]:
    """Return a function that does the same without syncing."""

    def run_without_syncs(rng: random.Random, directory: Path) -> Findings:
        skip_syncs()
        return run(rng, directory, cuts=5)

    return run_without_syncs


# The stores of the core


def run_store(subject: str, rng: random.Random, directory: Path, cuts: int = CUTS) -> Findings:
    """Every acknowledged save is intact after the power failure."""
    use_private_mounts()
    findings, disk = Findings(), Disk(directory)
    for _ in range(cuts):
        disk.format()
        with disk.mounted():
            acknowledged = checkpoint_until_cut(subject, disk, saves=rng.randint(1, 12))
        with disk.mounted():
            newest, damaged = read_store(subject, disk.directory)
        findings.faults += 1
        findings.operations += acknowledged + 1
        findings.record("lost", max(0, acknowledged - newest), f"{acknowledged} was acknowledged, {newest} is the newest")
        findings.record("wrong", damaged, "damaged checkpoints")
    return findings


def checkpoint_until_cut(subject: str, disk: Disk, saves: int) -> int:
    """Save on the disk until the power is cut. Return the last acknowledged number."""
    reader, writer = os.pipe()

    def work() -> None:
        os.dup2(writer, 1)
        subjects.main(subject, str(disk.directory), 0, sys.maxsize)

    program = fork(work)
    os.close(writer)
    output = b""
    while output.count(b"\n") < saves:
        data = os.read(reader, 1 << 16)
        assert data, "the program has ended"
        output += data
    output += disk.cut_under(program, reader)
    kill(program)
    os.close(reader)
    return int(output.split()[-1])


def read_store(subject: str, directory: Path) -> tuple[int, int]:
    """Return the newest intact number, -1 if there is none, and how many checkpoints are damaged."""
    with Checkpointer(subjects.URLS[subject].format(directory)) as checkpointer:
        damaged = sum(not finding.good for finding in checkpointer.verify())
        return checkpointer.load("t")["n"] if checkpointer.list("t") else -1, damaged


RUNS = {
    "journal": run_journal,
    "journal and trace store": run_trace_store,
    "file store": partial(run_store, "file"),
    "SQLite store": partial(run_store, "sqlite"),
}
TRIALS = [Trial("power failure", name, "faults", 60, run, control(run)) for name, run in RUNS.items()]
