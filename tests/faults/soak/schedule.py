"""Runs rounds of trials side by side, each in a process of its own with a directory and a seed of its own."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.faults.soak.trial import Findings, Trial

ROUND_TIMEOUT = 600.0
"""Seconds after which a round is taken to hang. Rounds take a few seconds."""


class Round:
    """One run of a trial (`work` is its `run` or `control`) in a forked process, which leads its own process group."""

    def __init__(self, trial: Trial, work: Callable[[random.Random, Path], Findings], seed: str) -> None:
        self.trial, self.seed = trial, seed
        self.directory = Path(tempfile.mkdtemp(prefix="soak-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self._started = time.monotonic()
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if not self._pid:
            self._work(work, writer)
        os.close(writer)

    def _work(self, work: Callable[[random.Random, Path], Findings], writer: int) -> None:
        try:
            os.setpgid(0, 0)
            os.close(self.reader)
            output = os.open(self.directory / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            try:
                findings = work(random.Random(self.seed), self.directory)
            except BaseException:
                findings = Findings()
                findings.record("exceptions", 1, f"the rig failed: {traceback.format_exc()}")
            os.write(writer, msgspec.json.encode(findings))
        finally:
            os._exit(0)

    def is_overdue(self) -> bool:
        return time.monotonic() - self._started > ROUND_TIMEOUT

    def finish(self) -> Findings:
        """Wait for the result. The directory is kept if there are defects."""
        data = b"" if self.is_overdue() else b"".join(iter(lambda: os.read(self.reader, 1 << 16), b""))
        os.close(self.reader)
        with suppress(ProcessLookupError):  # also whatever the round has left running
            os.killpg(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        findings = msgspec.json.decode(data, type=Findings) if data else Findings()
        findings.record("signals", not data, f"the round ended with {code} and without a result")
        findings.notes = [f"{self.trial.title}, round {self.seed}, {self.directory}: {note}" for note in findings.notes]
        if not findings.defects:
            shutil.rmtree(self.directory, ignore_errors=True)
        return findings


class Result(NamedTuple):
    """The findings of one round."""

    trial: Trial
    findings: Findings


def run_controls(trials: list[Trial], seed: str, slots: int) -> Iterator[Result]:
    """Run the control of each trial once. The directory is kept if the defect was not detected."""
    waiting, running = list(trials), list[Round]()
    while waiting or running:
        while waiting and len(running) < slots:
            trial = waiting.pop(0)
            running.append(Round(trial, trial.control, f"{seed}/{trial.title}/control"))
        for each in _finished(running):
            findings = each.finish()
            if findings.is_detection:
                shutil.rmtree(each.directory, ignore_errors=True)
            yield Result(each.trial, findings)


def run_trials(trials: list[Trial], seed: str, deadline: float, slots: int) -> Iterator[Result]:
    """Run rounds until the deadline. The next one is always of the trial that is furthest from its target."""
    progress, numbers, running = dict.fromkeys(trials, 0), dict.fromkeys(trials, 0), list[Round]()
    while running or time.monotonic() < deadline:
        while time.monotonic() < deadline and len(running) < slots:
            busy = [each.trial for each in running]
            trial = min(trials, key=lambda trial: (progress[trial] / trial.target, busy.count(trial), numbers[trial]))
            running.append(Round(trial, trial.run, f"{seed}/{trial.title}/{numbers[trial]}"))
            numbers[trial] += 1
        for each in _finished(running):
            findings = each.finish()
            progress[each.trial] += getattr(findings, each.trial.unit)
            yield Result(each.trial, findings)


def _finished(running: list[Round]) -> list[Round]:
    """Wait a moment for rounds to end, and remove those that did from the list."""
    readable, _, _ = select.select([each.reader for each in running], [], [], 1.0)
    finished = [each for each in running if each.reader in readable or each.is_overdue()]
    running[:] = [each for each in running if each not in finished]
    return finished
