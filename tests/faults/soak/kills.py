"""Host programs and their deliverers are killed at random moments, in each delivery mode.

All programs of a round share a state directory and a server, so whoever starts next takes over what the dead have left, and may be killed
while it does. At the end, everything that began must be at the server, each operation once, with the end and phase that it had.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import ckpt_observe
from ckpt_observe.journal import recovery
from ckpt_observe.journal.page_reader import Heartbeat
from tests.delivery.rig import companions, end_companions
from tests.faults.oracle import compare_spans
from tests.faults.soak import canaries
from tests.faults.soak.host_processes import Site, kill
from tests.faults.soak.otlp_server import OtlpServer
from tests.faults.soak.trial import Findings, Trial
from tests.faults.worker import Oracle, start_saving

MODES = ("in-process", "companion", "daemon")
KILLS = 25
"""Kills in one round."""
LIFETIME = 0.2
"""Seconds that a host program lives at most after its start, or after its first save, which takes long on a busy machine."""
EARLY_KILLS = 0.2
"""The share of host programs whose life is counted from their start, so that many are killed before they save."""
DELIVERER_KILLS = 0.4
"""The share of host programs during whose life the deliverer is killed, too."""

SERVER_MODES = ("ok", "ok", "ok", "503", "reset", "slow")
"""The server fails, too. After a reset it may have the spans and get them again."""


class Strike(NamedTuple):
    """A kill at a moment of the host program's life."""

    moment: float
    strike: Callable[[], object]


def read_during(reader: int, strikes: list[Strike], *, from_first_save: bool) -> bytes:
    """Read the messages of a host program, and strike at each of the moments. Return them when the host program has ended."""
    messages: list[bytes] = []
    while from_first_save and not any(b" end\n" in data for data in messages) and (data := os.read(reader, 1 << 16)):
        messages.append(data)
    started = time.monotonic()
    for moment, strike in sorted(strikes, key=lambda strike: strike.moment):
        while (remaining := started + moment - time.monotonic()) > 0:
            if select.select([reader], [], [], remaining)[0]:
                messages.append(os.read(reader, 1 << 16))
        strike()
    while data := os.read(reader, 1 << 16):
        messages.append(data)
    os.close(reader)
    return b"".join(messages)


class KillRound:
    def __init__(self, mode: str, rng: random.Random, directory: Path) -> None:
        self._rng, self._canaries, self.findings = rng, canaries.draw(rng), Findings()
        self._server = OtlpServer(directory, self._canaries, f"{rng.random()}")
        self._site = Site(directory, mode, self._server)
        self._deliverer: int | None = None
        self._messages: list[bytes] = []

    def run(self, kills: int) -> Findings:
        with self._server:
            while self.findings.faults < kills:
                if self._deliverer is None:
                    self._deliverer = self._site.start_deliverer()
                self._server.mode = self._rng.choice(SERVER_MODES)
                self._run_host(len(self._messages))
            self._kill_deliverer()
            self._server.mode = "ok"
            self._check_end(self._site.deliver_rest())
        return self.findings

    def _run_host(self, number: int) -> None:
        reader, writer = os.pipe()

        def work() -> None:
            os.close(reader)
            ckpt_observe.observe()
            start_saving(Oracle(writer), f"h{number}.", self._canaries.texts)
            signal.pause()

        host = self._site.fork(work)
        os.close(writer)
        strikes = [Strike(self._rng.uniform(0.0, LIFETIME), lambda: os.kill(host, signal.SIGKILL))]
        if self._deliverer is not None and self._rng.random() < DELIVERER_KILLS:
            strikes.append(Strike(self._rng.uniform(0.0, LIFETIME), self._kill_deliverer))
        self._messages.append(read_during(reader, strikes, from_first_save=self._rng.random() >= EARLY_KILLS))
        self._kill(host)

    def _kill_deliverer(self) -> None:
        if self._deliverer is not None:
            deliverer, self._deliverer = self._deliverer, None
            self._kill(deliverer, may_exit=self._site.mode == "companion")  # a companion exits two seconds after its last host program
        end_companions(self._site.state) if self._site.mode == "companion" else None

    def _kill(self, pid: int, *, may_exit: bool = False) -> None:
        code = kill(pid)
        if code == 0 and may_exit:
            return
        self.findings.faults += 1
        self.findings.record("signals", code != -signal.SIGKILL, f"exit code {code} instead of SIGKILL")

    def _check_end(self, code: int) -> None:
        findings, site = self.findings, self._site
        received = self._server.received()
        findings.record("duplicated", sum(len(spans) > 1 for spans in received.values()), "operations with different spans")
        tally = compare_spans(b"".join(self._messages), received)
        findings.operations = tally["begun"]
        findings.record("lost", tally["begun lost"] + tally["ended lost"], tally)
        findings.record("wrong", tally["wrong end"] + tally["wrong phase"] + tally["invented"], tally)
        findings.record("signals", code < 0, f"the last delivery died: {code}")
        findings.record("wrong", code > 0 or not site.is_empty(), f"not everything was delivered in time: {code}")
        findings.record("wrong", len(list(site.pages.glob("*"))) if site.is_empty() else 0, "pages are left in shared memory")
        logs = site.read_logs()
        findings.record(
            "leaked", self._server.leaks + self._canaries.leaks(logs) + self._canaries.leaks_in(site.state), "see the directory"
        )
        findings.record("exceptions", logs.count(b"Traceback") + logs.count(b"Internal error"), logs[-2000:].decode(errors="replace"))


def run(mode: str, rng: random.Random, directory: Path, kills: int = KILLS) -> Findings:
    try:
        return KillRound(mode, rng, directory).run(kills)
    finally:
        if companions(directory / "state"):  # started by a host program that found none
            end_companions(directory / "state")


def control(mode: str, rng: random.Random, directory: Path) -> Findings:
    """With a recovery that ignores the pages of dead processes, operations are lost."""
    mock.patch.object(recovery, "read_operations", lambda _paths: (Heartbeat(), {})).start()  # raises if there is no such function
    return run(mode, rng, directory, kills=10)


TRIALS = [Trial("SIGKILL", mode, "faults", 1000, partial(run, mode), partial(control, mode)) for mode in MODES]
