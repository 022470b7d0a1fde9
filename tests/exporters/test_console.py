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
    """An operation that ended is a tree at once; its task need not have ended."""
    ConsoleExporter(screen).send(make_tree()[:-1])
    assert names(screen.getvalue()) == ["checkpoint.save", "serialize", "write"]


def test_task_is_printed_when_it_ends(screen):
    """The task's line comes when it is over, without what was printed before."""
    exporter = ConsoleExporter(screen)
    *operations, task = make_tree()
    exporter.send(operations)
    exporter.send([task])
    assert names(screen.getvalue()) == ["checkpoint.save", "serialize", "write", "task demo"]


def test_whole_trace_in_one_batch_is_one_tree(screen):
    """What arrives together is drawn together."""
    ConsoleExporter(screen).send(make_tree(operations=("save", "restore"), phases=()))
    assert names(screen.getvalue()) == ["task demo", "checkpoint.save", "checkpoint.restore"]


def test_phases_wait_for_their_operation(screen):
    """Phases that arrive before their operation are printed beneath it."""
    exporter = ConsoleExporter(screen)
    serialize, write, save, _ = make_tree()
    exporter.send([serialize])
    exporter.send([write])
    assert screen.getvalue() == ""
    exporter.send([save])
    assert names(screen.getvalue()) == ["checkpoint.save", "serialize", "write"]


def test_phases_without_operation_are_printed_at_close(screen):
    """Nothing is kept for ever, nothing twice."""
    exporter = ConsoleExporter(screen)
    exporter.send(make_tree()[:2])
    exporter.close()
    exporter.close()
    assert names(screen.getvalue()) == ["serialize", "write"]


def test_held_phases_are_bounded(screen):
    """Phases whose operation does not come are printed before they are many."""
    exporter = ConsoleExporter(screen)
    phases = [make_span(number, "checkpoint.write", parent=1, attributes={"checkpoint.phase": "write"}) for number in range(2, 2502)]
    for first in range(0, 2500, 250):
        exporter.send(phases[first : first + 250])
    assert len(exporter._pending) <= 1000
    assert len(screen.getvalue().splitlines()) == 2500 - len(exporter._pending)


def test_default_is_standard_error(capsys):
    """Output of the host stays what it is."""
    ConsoleExporter().send(make_tree())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert names(captured.err)[0] == "task demo"


def test_plain_where_it_is_no_terminal(screen):
    """A file gets no colours."""
    ConsoleExporter(screen).send(make_tree(outcome="error"))
    assert "\x1b" not in screen.getvalue()


def test_terminal_without_unicode_gets_ascii():
    """A screen that cannot show a line's corner gets its code, not an exception."""
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, encoding="ascii")
    ConsoleExporter(screen).send(make_tree())
    assert b"\\u2514\\u2500 write" in raw.getvalue()


def test_closed_pipe_is_refused_once_then_silent():
    """When the reader goes away that is said once; the program and the other exporters go on."""
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


def test_closed_file_is_refused():
    """A file that was closed beneath us is an exporter error as well."""
    screen = io.StringIO()
    screen.close()
    with pytest.raises(ExporterRefusedError):
        ConsoleExporter(screen).send(make_tree())


def test_full_disk_is_retry_and_loses_nothing(screen):
    """Standard error into a file on a full disk is tried again, with the phases that waited."""

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
