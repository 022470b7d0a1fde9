"""The console exporter."""

from __future__ import annotations

import io
import os

import pytest

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporters.console import ConsoleExporter
from ckpt_observe.testing.spans import make_span, make_tree


def names(text):
    return [line.split("  ")[0] if line[0] not in " ├└│" else line.split("─ ")[1].split("  ")[0] for line in text.splitlines()]


@pytest.fixture
def screen():
    return io.StringIO()


def test_operation_is_printed_with_its_phases(screen):
    """An operation is printed as a tree when it ends, even if its task is still running."""
    ConsoleExporter(screen).send(make_tree()[:-1])
    assert names(screen.getvalue()) == ["checkpoint.save", "serialize", "write"]


def test_task_is_printed_when_it_ends(screen):
    """The line of the task is printed when it ends, without the operations printed before."""
    exporter = ConsoleExporter(screen)
    *operations, task = make_tree()
    exporter.send(operations)
    exporter.send([task])
    assert names(screen.getvalue()) == ["checkpoint.save", "serialize", "write", "task demo"]


def test_trace_in_one_batch_is_one_tree(screen):
    """Spans that arrive together are drawn as one tree."""
    ConsoleExporter(screen).send(make_tree(operations=("save", "restore"), phases=()))
    assert names(screen.getvalue()) == ["task demo", "checkpoint.save", "checkpoint.restore"]


def test_phases_wait_for_their_operation(screen):
    """Phases that arrive before their operation are printed below it."""
    exporter = ConsoleExporter(screen)
    serialize, write, save, _ = make_tree()
    exporter.send([serialize])
    exporter.send([write])
    assert screen.getvalue() == ""
    exporter.send([save])
    assert names(screen.getvalue()) == ["checkpoint.save", "serialize", "write"]


def test_phases_without_operation_are_printed_at_close(screen):
    """Phases whose operation never arrived are printed once, when the exporter is closed."""
    exporter = ConsoleExporter(screen)
    exporter.send(make_tree()[:2])
    exporter.close()
    exporter.close()
    assert names(screen.getvalue()) == ["serialize", "write"]


def test_pending_phases_are_bounded(screen):
    """Phases whose operation does not arrive are printed when there are too many."""
    exporter = ConsoleExporter(screen)
    phases = [make_span(number, "checkpoint.write", parent=1, attributes={"checkpoint.phase": "write"}) for number in range(2, 2502)]
    for first in range(0, 2500, 250):
        exporter.send(phases[first : first + 250])
    assert len(exporter._pending) <= 1000
    assert len(screen.getvalue().splitlines()) == 2500 - len(exporter._pending)


def test_default_is_standard_error(capsys):
    """Standard output of the host program is not used."""
    ConsoleExporter().send(make_tree())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert names(captured.err)[0] == "task demo"


def test_no_colour_in_a_file(screen):
    """Escape sequences are written only to terminals."""
    ConsoleExporter(screen).send(make_tree(outcome="error"))
    assert "\x1b" not in screen.getvalue()


def test_terminal_without_unicode_gets_ascii():
    """Characters that the terminal cannot show are escaped."""
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, encoding="ascii")
    ConsoleExporter(screen).send(make_tree())
    assert b"`- write" in raw.getvalue()


def test_closed_pipe_is_reported_once():
    """A closed pipe raises ExporterRefusedError once; later batches are dropped."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8", closefd=False) as screen:
        exporter = ConsoleExporter(screen)
        with pytest.raises(ExporterRefusedError):
            exporter.send(make_tree(1))
        assert exporter.send(make_tree(2)) is None
        exporter.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    os.close(writing)


def test_closed_file():
    """A file that the program closed raises ExporterRefusedError."""
    screen = io.StringIO()
    screen.close()
    with pytest.raises(ExporterRefusedError):
        ConsoleExporter(screen).send(make_tree())


def test_full_disk_is_retried_without_loss(screen):
    """If standard error is a file on a full disk, the batch is retried with its pending phases."""

    class Full(io.StringIO):
        full = True

        def write(self, text):
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    file = Full()
    exporter = ConsoleExporter(file)
    exporter.send(make_tree()[:2])
    with pytest.raises(ExporterRetryError):
        exporter.send(make_tree()[2:])
    file.full = False
    exporter.send(make_tree()[2:])
    assert names(file.getvalue()) == ["task demo", "checkpoint.save", "serialize", "write"]
