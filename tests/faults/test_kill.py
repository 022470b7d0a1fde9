"""Processes that die at random moments, killed or by themselves, lose no record and deliver no wrong one."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ckpt_observe.journal import locations
from tests.faults import worker
from tests.faults.oracle import LOSSES, Tally, adopt, compare

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("CKPT_TEST_KILLS", "60"))
WORKER = Path(worker.__file__)
LEAST = 25
"""Operations that most workers end before they are killed, however slow the machine is."""
EARLY = 5
"""One of this many workers is killed after some time, even if it has not saved yet."""


def run_until(reader: int, seconds: float, strike, least: int = 0) -> bytes:
    """Read the oracle until `least` operations have ended and some seconds more, call `strike`, and read until the end. Return all."""
    messages: list[bytes] = []
    ended = 0
    while ended < least and (data := os.read(reader, 1 << 16)):
        messages.append(data)
        ended += data.count(b" end\n")
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], remaining)[0]:
            messages.append(os.read(reader, 1 << 16))
    strike()
    while data := os.read(reader, 1 << 16):
        messages.append(data)
    os.close(reader)
    return b"".join(messages)


def fork_and_kill(directory: Path, seconds: float, number: int, work=worker.start, least: int = LEAST) -> bytes:
    """Fork a worker and send it a signal some seconds after its first operations. Return its messages to the oracle."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
            work(directory, writer)
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    messages = run_until(reader, seconds, lambda: os.kill(child, number), least)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -number
    return messages


def kill_many(tmp_path, kills: int, signal_number: int) -> Tally:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser, total = random.Random(seed), Tally()
    for number in range(1, kills + 1):
        directory = tmp_path / str(number)
        is_early = number % EARLY == 0
        messages = fork_and_kill(directory, chooser.uniform(0.0, 0.4 if is_early else 0.2), signal_number, least=0 if is_early else LEAST)
        (directory / "state").mkdir(parents=True, exist_ok=True)
        reported = adopt(directory)
        tally = compare(messages, directory)
        assert reported == tally["in flight"]
        journals = list((directory / "state" / "journals").glob("*"))
        assert [path for path in journals if path.suffix != ".new"] == [], "a delivered journal is removed, an incomplete one later"
        assert not list((directory / "pages").glob("*")), "and its pages"
        total.update(tally)
        if not any(tally[loss] for loss in LOSSES):
            shutil.rmtree(directory)
    return total


@pytest.mark.parametrize(
    ("signal_number", "pages", "kills"),
    [(signal.SIGKILL, "mapped", KILLS), (signal.SIGKILL, "pwrite", max(1, KILLS // 5)), (signal.SIGTERM, "mapped", max(1, KILLS // 10))],
    ids=["SIGKILL", "SIGKILL-pwrite", "SIGTERM"],
)
def test_killed_at_random_moments(tmp_path, monkeypatch, signal_number, pages, kills):
    """No operation is lost, and each one that was running is reported once, in a phase that the oracle allows."""
    monkeypatch.setattr(locations, "file_system", lambda path: "tmpfs" if pages == "mapped" else "nfs4")
    total = kill_many(tmp_path, kills, signal_number)
    print(f"\n{kills} times {signal_number.name}, pages {pages}: {total}")
    assert total["begun"] > kills * 10, "the worker must have saved"
    assert total["in flight"] > kills // 2, "and been killed while it saved"
    assert {loss: total[loss] for loss in LOSSES} == dict.fromkeys(LOSSES, 0)


def test_control_detects_losses(tmp_path):
    """Control: with OpenTelemetry's batch processor, finished operations are lost, and the test detects it."""

    class ToFile(SpanExporter):
        def __init__(self, directory):
            directory.mkdir(parents=True)
            self._fd = os.open(directory / "ended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def export(self, spans):
            os.write(self._fd, "".join(f"{span.attributes['key']}\n" for span in spans).encode())
            return SpanExportResult.SUCCESS

    def work(directory, fd):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(ToFile(directory)))
        tracer, oracle, number = provider.get_tracer("control"), worker.Oracle(fd), 0
        while True:
            with oracle.step(f"k{number}", "end"), tracer.start_as_current_span("save", attributes={"key": f"k{number}"}):
                pass
            number += 1

    ended = lost = 0
    for number in range(5):
        messages = fork_and_kill(tmp_path / str(number), 0.1, signal.SIGKILL, work).decode().splitlines()
        ended_keys = {line.split()[1] for line in messages if line.startswith(">")}
        path = tmp_path / str(number) / "ended"
        exported_keys = set(path.read_text().split()) if path.exists() else set()
        ended, lost = ended + len(ended_keys), lost + len(ended_keys - exported_keys)
    print(f"\ncontrol: {lost:,} of {ended:,} ended operations lost")
    assert lost > 0


@pytest.mark.parametrize(("ending", "code"), [("os._exit", 7), ("exception", 1), ("sys.exit", 3)])
def test_process_ends_by_itself(tmp_path, ending, code):
    """A process that exits while other threads save loses nothing, and keeps its exit code."""
    total = Tally()
    for number in range(5):
        directory = tmp_path / str(number)
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, str(WORKER), str(directory), str(writer), ending],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[writer],
        )
        os.close(writer)
        messages = run_until(reader, random.uniform(0.0, 0.2), process.stdin.close, LEAST)
        errors = process.stderr.read()
        process.stderr.close()
        assert process.wait(30) == code
        assert b"ckpt_observe" not in errors.replace(str(WORKER).encode(), b"")
        assert b"Checkpoints are not observed" not in errors
        assert b"Cannot write" not in errors
        adopt(directory)
        total.update(compare(messages, directory))
    print(f"\n5 times {ending}: {total}")
    assert total["begun"] >= 5 * LEAST
    assert {loss: total[loss] for loss in LOSSES} == dict.fromkeys(LOSSES, 0)
