"""Fixtures for all tests. Contracts are in `ckpt_observe.testing`; fixtures of one directory are in its own conftest.py."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator

import pytest

import ckpt_observe
from ckpt_observe import api
from ckpt_observe.core import Checkpointer
from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.journal.spool import join_lines
from ckpt_observe.record.recorder import recorder
from ckpt_observe.tracestore import FILENAME, TraceReader

# Outside test files, pytest explains failed assertions only in registered modules.
pytest.register_assert_rewrite("ckpt_observe.testing", "observation", "paired_run", "databases")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts programs in the background like that, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


for name in list(os.environ):  # settings of the shell: tests must not send spans to a real backend
    if name.startswith(("CKPT_OBSERVE_", "LMNR_", "OTEL_")) or name in ("TRACEPARENT", "TRACESTATE"):
        del os.environ[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip", action="store_true", help="fail if any test was skipped: for environments that have everything installed"
    )


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Let `-n auto` start two workers more than there are cores, because tests wait for timers and processes about half of the time."""
    cores = yield
    return cores if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else cores + 2


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what exists now and stays: a full collection of all tests takes half a second, and some tests do many.

    It would also write to each of these objects in every forked process, which copies their memory.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--fail-on-skip"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.stats.get("skipped") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory):
    """A directory for what tests, their processes and libraries create among the temporary files. It is removed at the end."""
    tmp_path_factory.getbasetemp()  # created beside it: pytest keeps it, to look at after a failure
    directory = tempfile.mkdtemp(prefix="ckpt-tests-")
    os.chmod(directory, 0o711)  # PostgreSQL runs as another user
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        yield
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def check_no_leftovers():
    """Check that a test leaves no thread, patch or active recorder of ours behind."""
    yield
    assert not recorder.on
    assert api._watch is None
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("ckpt-observe")]
    for thread in ours:
        thread.join(20)  # on a busy machine a thread may end shortly after `close` stopped waiting for it
    assert not [thread.name for thread in ours if thread.is_alive()]
    assert not isinstance(Checkpointer.__dict__["save"], PatchedCallable)


@pytest.fixture
def state(tmp_path):
    """The path of a state directory that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture
def watch(state, tmp_path):
    """Observe this process with the local exporter, in the directory `state`."""
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages", service="test")
    yield watch
    watch.close(10)


@pytest.fixture
def stored_spans(state):
    """A function that returns all spans in the local trace store."""

    def read():
        if not (state / FILENAME).exists():
            return []
        with TraceReader(state / FILENAME) as reader:
            return [span for trace in reader.newest(10_000) for span in reader.spans(trace.trace_id)]

    return read


class MemoryPage:
    """A page whose lines and marks a test can read."""

    def __init__(self):
        self.lines = []
        self.marks = {}
        self.ended = 0

    def append(self, line):
        self.lines.append(line)
        return True

    def finish(self, line):
        self.lines.append(line)
        self.ended += 1

    def discard(self):
        self.lines.clear()
        self.ended += 1


class Recording:
    """Collects what operations write in memory pages, without a journal."""

    def __init__(self):
        self.pages = []

    def take(self):
        self.pages.append(MemoryPage())
        return self.pages[-1]

    def spans(self):
        return [span for page in self.pages for span in assemble(join_lines(b"".join(page.lines)), {})]

    def text(self):
        return b"".join(line for page in self.pages for line in page.lines).decode()


@pytest.fixture
def recording(monkeypatch):
    """Turn the recorder on. What it records can be read at once."""
    recording = Recording()
    for name, value in (("on", True), ("take", recording.take), ("process_parent", None)):
        monkeypatch.setattr(recorder, name, value)
    yield recording
    monkeypatch.undo()
