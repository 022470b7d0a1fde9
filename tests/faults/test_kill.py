"""Processes that die at a random moment, by kill -9 and in every other way: nothing that they recorded is lost or told wrong."""

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

KILLS = int(os.environ.get("CKPT_OBSERVE_TEST_KILLS", "200"))
WORKER = Path(worker.__file__)


def run_until(reader: int, seconds: float, strike) -> bytes:
    """What the oracle hears for so long, and then until the end: `strike` is called in between."""
    heard, deadline = [], time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            heard.append(os.read(reader, 1 << 16))
    strike()
    while data := os.read(reader, 1 << 16):
        heard.append(data)
    os.close(reader)
    return b"".join(heard)


def forked(directory: Path, seconds: float, how: int, work=worker.start) -> bytes:
    """A forked worker that gets the signal after so long: what it told the oracle."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            signal.signal(how, signal.SIG_DFL) if how != signal.SIGKILL else None
            work(directory, writer)
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    heard = run_until(reader, seconds, lambda: os.kill(child, how))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -how
    return heard


def many(tmp_path, kills: int, how: int) -> Tally:
    chooser, total = random.Random(), Tally()
    for number in range(kills):
        directory = tmp_path / str(number)
        heard = forked(directory, chooser.uniform(0.0, 0.4), how)
        (directory / "state").mkdir(parents=True, exist_ok=True)
        reported = adopt(directory)
        tally = compare(heard, directory)
        assert reported == tally["in flight"]
        left = list((directory / "state" / "journals").glob("*"))
        assert [path for path in left if path.suffix != ".new"] == [], "a delivered journal is removed; one half made is later"
        assert not list((directory / "pages").glob("*")), "and its pages"
        total.update(tally)
        if not any(tally[loss] for loss in LOSSES):
            shutil.rmtree(directory)
    return total


@pytest.mark.parametrize(
    ("how", "pages", "kills"),
    [(signal.SIGKILL, "mapped", KILLS), (signal.SIGKILL, "pwrite", max(1, KILLS // 5)), (signal.SIGTERM, "mapped", max(1, KILLS // 10))],
    ids=["SIGKILL", "SIGKILL-pwrite", "SIGTERM"],
)
def test_killed_at_random_moments(tmp_path, monkeypatch, how, pages, kills):
    """Nothing begun is lost, nothing ended is lost, and what was in flight is reported once, in a phase that the oracle allows."""
    monkeypatch.setattr(locations, "file_system", lambda path: "tmpfs" if pages == "mapped" else "nfs4")
    total = many(tmp_path, kills, how)
    print(f"\n{kills} times {how.name}, pages {pages}: {total}")
    assert total["begun"] > kills * 10, "the rig must have worked"
    assert total["in flight"] > kills // 2, "and been hit at work"
    assert {loss: total[loss] for loss in LOSSES} == dict.fromkeys(LOSSES, 0)


def test_control_must_lose(tmp_path):
    """The same rig with OpenTelemetry's batch processor loses finished operations and knows of none in flight: so the rig can see a loss."""

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
        heard = forked(tmp_path / str(number), 0.3, signal.SIGKILL, work).decode().splitlines()
        over = {line.split()[1] for line in heard if line.startswith(">")}
        path = tmp_path / str(number) / "ended"
        had = set(path.read_text().split()) if path.exists() else set()
        ended, lost = ended + len(over), lost + len(over - had)
    print(f"\ncontrol: {lost:,} of {ended:,} ended operations lost")
    assert lost > 0


@pytest.mark.parametrize(("ending", "code"), [("os._exit", 7), ("exception", 1), ("sys.exit", 3)])
def test_other_endings(tmp_path, ending, code):
    """A process that ends by itself, with work in other threads, loses nothing either, and keeps its exit code."""
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
        select.select([reader], [], [], 30)  # it works
        heard = run_until(reader, random.uniform(0.05, 0.3), process.stdin.close)
        errors = process.stderr.read()
        process.stderr.close()
        assert process.wait(30) == code
        assert b"ckpt_observe" not in errors.replace(str(WORKER).encode(), b"")
        adopt(directory)
        total.update(compare(heard, directory))
    print(f"\n5 times {ending}: {total}")
    assert total["begun"] > 100
    assert {loss: total[loss] for loss in LOSSES} == dict.fromkeys(LOSSES, 0)
