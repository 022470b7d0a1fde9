"""A fault at the first operation ends with the fault: recording starts later, and what was missed is counted and reported."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from contextlib import contextmanager

import pytest

import ckpt_observe
from ckpt_observe import api, exporter_selection, wiring
from ckpt_observe.cli.doctor import PROBLEM
from ckpt_observe.cli.doctor.state_directory import check_journals
from ckpt_observe.exporters.console import ConsoleExporter
from ckpt_observe.exporters.provider import ProviderExporter
from ckpt_observe.semconv import metrics

checkpoint = ckpt_observe.checkpoint  # imported on first use, which needs a file descriptor


def save():
    with checkpoint("save") as operation:
        pass
    return operation


@contextmanager
def no_descriptors():
    """No file can be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def failing_call(name, number):
    """A context in which a function of `os` fails."""

    @contextmanager
    def context():
        def fail(*_args, **_kwargs):
            raise OSError(number, os.strerror(number))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, name, fail)
            yield

    return context


@contextmanager
def no_threads():
    """The system starts no thread."""

    def refuse(*_args, **_kwargs):
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_start_new_thread", "_start_joinable_thread"):
            patch.setattr(threading, name, refuse, raising=False)
        yield


JOURNAL_FAULTS = {
    "no descriptors": no_descriptors,
    "fsync fails": failing_call("fsync", errno.EIO),
    "rename fails": failing_call("rename", errno.EIO),
    "disk full": failing_call("posix_fallocate", errno.ENOSPC),
}


@pytest.fixture
def no_pause(monkeypatch):
    """Every operation tries again."""
    monkeypatch.setattr(api, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(api, "LONGEST_PAUSE", 0.0)


@pytest.fixture(params=["in-process", "daemon"])
def watch(request, state, tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages", service="test", delivery=request.param)
    yield watch
    watch.close(10 if request.param == "in-process" else 0)  # there is no daemon to wait for


@pytest.mark.parametrize("fault", JOURNAL_FAULTS.values(), ids=JOURNAL_FAULTS)
def test_journal_that_cannot_be_created(watch, no_pause, caplog, state, fault):
    """Operations during the fault are counted, reported by `flush()`, the log, the metrics and doctor. Later ones are recorded."""
    with fault():
        assert [save().span_id for _ in range(3)] == ["", "", ""]
        assert watch.flush(5) is False
    assert save().span_id
    assert watch._delivery.health()[metrics.DROPPED_RECORDS.name, ("missed",)] == 3
    assert [finding.state for finding in check_journals(watch.settings) if "first 3 operations were not recorded" in finding.detail] == [
        PROBLEM
    ]
    assert caplog.text.count("Checkpoints are not observed") == 1
    assert caplog.text.count("3 operations before were not recorded") == 1
    if watch.settings.delivery == "in-process":
        assert watch.flush(60)
        assert watch.close(60)


def test_thread_that_cannot_be_started(watch, no_pause, caplog, stored_spans):
    """Without threads, operations are recorded. They are delivered as soon as threads can be started."""
    with no_threads():
        operations = [save() for _ in range(3)]
    assert all(operation.span_id for operation in operations)
    operations.append(save())
    assert caplog.text.count("Checkpoints are recorded, but not delivered") == 1
    if watch.settings.delivery == "in-process":
        assert watch.flush(60)
        assert {span.span_id for span in stored_spans()} == {operation.span_id for operation in operations}


def test_pause_between_attempts(watch, monkeypatch):
    """An operation does not try again before the pause is over; `flush()` does."""
    attempts = []
    monkeypatch.setattr(wiring, "open_journal", lambda *_: attempts.append(1) or next(iter(())))
    for _ in range(3):
        save()
    assert len(attempts) == 1
    assert watch.flush(0) is False
    assert len(attempts) == 2


def test_close_after_a_fault(watch, no_pause, caplog):
    """If the fault lasts until the end, `close()` returns False, and the number of operations is logged."""
    with no_descriptors():
        save()
        save()
        assert watch.close(5) is False
    assert "2 checkpoint operations were not recorded" in caplog.text


def test_interrupted_start(watch, monkeypatch):
    """A signal handler that raises while the journal starts does not end observation."""

    def raise_timeout(_signum, _frame):
        raise TimeoutError

    def interrupt(*_args):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_timeout)
    monkeypatch.setattr(wiring, "open_journal", interrupt)
    try:
        with pytest.raises(TimeoutError):
            save()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert save().span_id


def test_journal_before_exporters(state, tmp_path, monkeypatch, stored_spans):
    """The journal is created before the exporters are built: an exporter whose constructor ends the program does not keep it from recording."""
    journals = state / "journals"
    built = []
    build = exporter_selection.EXPORTERS["local"]

    def check_journal(settings):
        built.append([path.name for path in journals.iterdir()])
        return build(settings)

    monkeypatch.setitem(exporter_selection.EXPORTERS, "local", check_journal)
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    operation = save()
    assert watch.close(60)
    assert len(built[0]) == 1
    assert [span.span_id for span in stored_spans()] == [operation.span_id]


def test_exporter_that_cannot_be_started(state, tmp_path, monkeypatch, caplog, stored_spans):
    """An exporter whose start fails is started again with its next spans, and gets all of them."""
    started = []

    class Late(exporter_selection._local(ckpt_observe.config.read(dir=state)).__class__):
        def start(self, health):
            started.append(health)
            if len(started) < 3:
                raise RuntimeError("can't start new thread")

    monkeypatch.setitem(exporter_selection.EXPORTERS, "local", lambda settings: Late(settings.dir))
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    operation = save()
    while not watch.flush(20):  # ends the pause between two attempts
        pass
    assert watch.close(60)
    assert len(started) == 3
    assert [span.span_id for span in stored_spans()] == [operation.span_id]
    assert "start() failed" in caplog.text


def test_transient_exporters():
    """The table of exporters that only their own process can use agrees with the exporters."""
    assert exporter_selection.durable_names(exporter_selection.EXPORTERS, {}) == ["otlp", "laminar", "prometheus", "local"]
    assert not ConsoleExporter.durable
    assert not ProviderExporter.durable
