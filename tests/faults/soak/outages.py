"""The server is down, refuses, fails, resets connections, does not answer or is slow, while programs save as fast as they can.

Below the disk limit, everything is delivered after the outage. Beyond it, what is delivered and what is counted as dropped add up exactly.
A round saves some thousand operations: a few before the outage (if the server has accepted spans, it is judged differently), the rest
during it. The outage begins while programs save; they wait for it before they go on to the rest, however late it comes.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import ckpt_observe
from ckpt_observe import api, config
from ckpt_observe.delivery import handover, outbox, set_aside
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.exporter_selection import build_exporters
from ckpt_observe.journal import spool
from ckpt_observe.record.guard import faults
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from tests.delivery.rig import end_companions
from tests.faults.soak import canaries
from tests.faults.soak.canaries import Canaries
from tests.faults.soak.host_processes import PATIENCE, Site, kill, wait
from tests.faults.soak.otlp_server import POISON, OtlpServer
from tests.faults.soak.trial import Findings, Trial
from tests.faults.worker import plant

OPERATIONS = 12_000
"""Operations in one round."""
THREADS = 3
REPORT_EVERY = 200
POISONED = 400
"""One of this many operations makes the server fail in the modes `... for some`."""
BEFORE_OUTAGE = 0.1
"""The share of the operations after which the outage is to begin."""
WITHIN_OUTAGE = 0.2
"""The share of the operations after which none is saved before the outage has begun."""
SMALL_RECORD = 150
"""Bytes for each operation at a small disk limit: less than half of the record of an operation, so the limit is always reached."""
ENDED_HOSTS = 4


class Kind(NamedTuple):
    """A kind of outage."""

    name: str
    server: str
    """The mode of the server."""
    modes: tuple[str, ...] = ("in-process", "in-process", "companion", "daemon")
    """Delivery modes, one of which is chosen for each round."""
    from_start: bool | None = None
    """Whether the server fails before it has accepted anything; None: either."""
    is_repaired: bool = True
    """Whether the outage ends. The server refuses a bad span forever."""
    is_limited: bool = False
    """Whether a small disk limit applies, so that records are dropped."""
    ended_hosts: int = 0
    """If not 0, this many host programs save and exit one after the other, and a later process delivers."""


KINDS = (
    Kind("connection refused", "refused"),
    Kind("500", "500"),
    Kind("503", "503"),
    Kind("429 with Retry-After", "429"),
    Kind("400 from the start", "400", from_start=True),
    Kind("400 for one in 400", "400 for some", ("in-process",), from_start=False, is_repaired=False),
    Kind("500 for one in 400", "500 for some", ("in-process",), from_start=False),
    Kind("connection reset", "reset"),
    Kind("no answer", "black hole"),
    Kind("slow answers", "slow"),
    Kind("beyond the limit of a process", "refused", ("in-process",), is_limited=True),
    Kind("beyond the limit of ended processes", "refused", ("in-process",), from_start=True, is_limited=True, ended_hosts=ENDED_HOSTS),
)


class HostReport(msgspec.Struct):
    """What a host program reports at its end."""

    errors: list[str] = []
    """Exceptions that reached its code."""
    faults: int = 0
    """Exceptions that were caught by the guard."""
    is_delivered: bool = False
    dropped: int = 0
    refused: int = 0


# The host program


class HostProgram:
    """Saves operations on several threads, and reports its progress: a dot for `REPORT_EVERY` operations, then the report as a line."""

    def __init__(self, kind: Kind, prefix: str, operations: int, texts: tuple[str, ...], output: int, outage: int) -> None:
        """`outage` is a pipe whose other end is closed when the outage has begun."""
        self._kind, self._prefix, self._texts, self._output, self._outage = kind, prefix, texts, output, outage
        self._operations = operations
        self._report = HostReport()

    def run(self) -> None:
        faults.clear()  # those of the process that it was forked from
        set_aside.FIRST_RETRY = 0.5  # instead of a minute
        if self._kind.is_limited:
            spool.SEGMENT_SIZE = self._operations * SMALL_RECORD // 8
            if not self._kind.ended_hosts:  # they are limited together, by the one that delivers
                outbox.SPOOL_LIMIT = handover.SPOOL_LIMIT = self._operations * SMALL_RECORD
        watch = ckpt_observe.observe()
        threads = [threading.Thread(target=self._save, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._kind.ended_hosts:
            self._finish(watch.close(0.0), {})
            return
        deadline = time.monotonic() + PATIENCE
        while self._kind.is_limited and not _total(_health(), metrics.DROPPED_RECORDS.name) and time.monotonic() < deadline:
            watch.flush(0.0)  # moves records to the spool, which drops those beyond its limit
        os.write(self._output, b"!")  # everything is saved: the server may be repaired
        deadline = time.monotonic() + PATIENCE
        while not watch.flush(5.0) and time.monotonic() < deadline:
            pass
        health = _health() if self._kind.modes == ("in-process",) else {}
        self._finish(watch.close(30.0), health)

    def _save(self, thread: int) -> None:
        for number in range(thread, self._operations, THREADS):
            if number >= self._operations * WITHIN_OUTAGE:
                os.read(self._outage, 1)
            try:
                attributes = {POISON: True} if number % POISONED == 0 and self._kind.server.endswith("some") else None
                with ckpt_observe.checkpoint("save", id=f"{self._prefix}{number}", attributes=attributes) as operation:
                    with operation.phase("serialize"):
                        pass
                    with operation.phase("write"):
                        operation.set({"checkpoint.size.stored": number})
                    if number % 100 == 1:
                        plant(operation, self._texts[number // 100 % len(self._texts)])
            except BaseException as error:
                self._report.errors.append(repr(error))
            if number % REPORT_EVERY == 0:
                os.write(self._output, b".")

    def _finish(self, is_delivered: bool, health: Mapping[Any, float]) -> None:
        self._report.faults = sum(faults.values())
        self._report.is_delivered = is_delivered
        self._report.dropped = round(_total(health, metrics.DROPPED_RECORDS.name))
        self._report.refused = round(_total(health, metrics.REFUSED_SPANS.name))
        os.write(self._output, msgspec.json.encode(self._report) + b"\n")


def _health() -> Mapping[Any, float]:
    return api._watch._delivery.health()


def _total(health: Mapping[Any, float], metric: str) -> float:
    return sum(value for (name, _), value in health.items() if name == metric)


# The round


class OutageRound:
    def __init__(self, kind: Kind, rng: random.Random, directory: Path, operations: int) -> None:
        self._kind, self._rng, self._operations = kind, rng, operations
        self._canaries: Canaries = canaries.draw(rng)
        self._server = OtlpServer(directory, self._canaries, f"{rng.random()}")
        self._site = Site(directory, rng.choice(kind.modes), self._server)
        self._from_start = rng.random() < 0.3 if kind.from_start is None else kind.from_start
        self.findings = Findings(operations=operations)

    def run(self, tamper: Callable[[dict[str, Any]], object] = lambda _received: None) -> Findings:
        """`tamper` may change what the server has received, before it is compared."""
        with self._server:
            deliverer = self._site.start_deliverer()
            try:
                reports = self._run_hosts()
            finally:
                kill(deliverer)
                end_companions(self._site.state) if self._site.mode == "companion" else None
            self.findings.faults = max(self._server.faults, 1)
            received = self._server.received()
            tamper(received)
            self._compare(reports, received)
            self._check_leaks()
        return self.findings

    def _run_hosts(self) -> list[HostReport]:
        count = self._kind.ended_hosts
        if not count:
            return [self._run_host("", self._operations)]
        reports = [self._run_host(f"{number}.", self._operations // count) for number in range(count)]
        self._server.mode = "ok"
        reports.append(self._deliver_ended())
        return reports

    def _run_host(self, prefix: str, operations: int) -> HostReport:
        reader, writer = os.pipe()
        outage, begin_outage = os.pipe()
        if self._from_start:
            self._server.mode = self._kind.server
        program = HostProgram(self._kind, prefix, operations, self._canaries.texts, writer, outage)
        host = self._site.fork(lambda: (os.close(begin_outage), program.run()))
        os.close(writer)
        os.close(outage)
        with os.fdopen(reader, "rb", buffering=0) as stream:
            self._read_until(stream, b".", count=round(operations * BEFORE_OUTAGE) // REPORT_EVERY)
            self._server.mode = self._kind.server
            os.close(begin_outage)
            if not self._kind.ended_hosts:
                self._read_until(stream, b"!")
                self._hold()
                self.findings.record("leaked", self._canaries.leaks_in(self._site.state), "during the outage, in the state directory")
                self.findings.record("leaked", self._canaries.leaks_in(self._site.pages), "during the outage, in the pages")
                self._server.mode = "ok" if self._kind.is_repaired else self._kind.server
            rest = b"".join(iter(lambda: stream.read(1 << 16), b""))
        code = wait(host)
        self.findings.record("signals", code < 0, f"the host program died: {code}")
        self.findings.record("exceptions", code > 0, f"the host program ended with {code}")
        line = rest.rpartition(b"\n")[0].lstrip(b".!")
        return msgspec.json.decode(line, type=HostReport) if line else HostReport()

    def _read_until(self, stream: Any, sign: bytes, count: int = 1) -> None:
        """Read until a sign has come some times, or until the end."""
        while count > 0 and (data := stream.read(1)):
            count -= data == sign

    def _hold(self) -> None:
        """Let the outage last until the server has failed some requests, or half a second if it cannot count them."""
        before, deadline = self._server.faults, time.monotonic() + self._rng.uniform(0.5, 1.5)
        while self._server.faults < before + 3 and time.monotonic() < deadline:
            time.sleep(0.01)

    def _deliver_ended(self) -> HostReport:
        """Deliver what ended processes have left, with a small limit, and report what was dropped."""
        reader, writer = os.pipe()

        def work() -> None:
            settings = config.read()
            delivery = Delivery(settings.dir, build_exporters(settings), disk_limit=self._operations * SMALL_RECORD)
            delivery.adoption.scan()
            delivery.adoption.maintain()
            delivery.start()
            is_delivered = delivery.close(PATIENCE)
            report = HostReport(is_delivered=is_delivered, dropped=round(_total(delivery.health(), metrics.DROPPED_RECORDS.name)))
            os.write(writer, msgspec.json.encode(report))

        pid = self._site.fork(work)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            data = stream.read()
        code = wait(pid)
        self.findings.record("exceptions", code != 0, f"the last delivery ended with {code}")
        return msgspec.json.decode(data, type=HostReport) if data else HostReport()

    def _compare(self, reports: list[HostReport], received: dict[str, Any]) -> None:
        findings, kind = self.findings, self._kind
        prefixes = [f"{number}." for number in range(kind.ended_hosts)] or [""]
        expected = {f"{prefix}{number}" for prefix in prefixes for number in range(self._operations // len(prefixes))}
        findings.operations = len(expected)
        findings.counted = sum(report.dropped + report.refused for report in reports)
        missing = len(expected - received.keys()) - findings.counted
        findings.record("lost", max(missing, 0), f"{missing} are missing and not counted, {findings.counted} are counted")
        findings.record("wrong", max(-missing, 0), f"{-missing} were delivered, but counted as dropped")
        findings.record("wrong", len(received.keys() - expected), "operations that never began")
        findings.record("duplicated", sum(len(spans) > 1 for spans in received.values()), "operations with different spans")
        outcomes = {span.attributes[names.OUTCOME] for spans in received.values() for span in spans}
        findings.record("wrong", len(outcomes - {"ok"}), outcomes)
        findings.record("wrong", kind.is_limited and not findings.counted, "nothing was dropped: the limit was not reached")
        findings.record("wrong", not reports[-1].is_delivered, "not everything was delivered in time")
        findings.record("wrong", not self._site.is_empty() if self._site.mode == "in-process" else 0, "a journal is left")
        for report in reports:
            findings.record("exceptions", len(report.errors) + report.faults, report.errors[:3])

    def _check_leaks(self) -> None:
        logs = self._site.read_logs()
        self.findings.record("leaked", self._server.leaks + self._canaries.leaks(logs), "in requests or messages")
        self.findings.record("exceptions", logs.count(b"Traceback") + logs.count(b"Internal error"), logs[-2000:].decode(errors="replace"))


def run(kind: Kind, rng: random.Random, directory: Path, operations: int = OPERATIONS) -> Findings:
    return OutageRound(kind, rng, directory, operations).run()


def control(kind: Kind, rng: random.Random, directory: Path) -> Findings:
    """If the server forgets one operation, exactly that one is lost."""
    findings = OutageRound(kind, rng, directory, 2400).run(lambda received: received.pop(next(iter(received), ""), None))
    assert findings.lost == 1, findings.notes
    return findings


TRIALS = [Trial("outage", kind.name, "operations", 90_000, partial(run, kind), partial(control, kind)) for kind in KINDS]
