"""The host program is not affected by observation, whatever its contexts, arguments and exceptions are."""

from __future__ import annotations

import contextvars
import sqlite3

import pytest

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.tracestore import FILENAME, TraceReader


@pytest.fixture
def watch(tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages", enabled=True)
    yield watch
    watch.close()


def outcomes(watch):
    assert watch.flush(timeout=30)
    with TraceReader(watch.settings.dir / FILENAME) as reader:
        spans = [span for trace in reader.newest() for span in reader.spans(trace.trace_id)]
    return [(span.name, span.attributes["checkpoint.outcome"]) for span in spans]


def test_phase_without_an_operation():
    """A phase outside an operation accepts the same calls and does nothing."""
    with ckpt_observe.phase("write") as phase:
        phase.set({"checkpoint.phase.bytes_in": 1})
        assert phase is not None


def test_left_in_another_context(watch):
    """A scope that is entered in one context and left in another, as in generators of some frameworks, ends once and raises nothing."""

    def session():
        with ckpt_observe.checkpoint("save"):
            yield

    generator = session()
    contextvars.copy_context().run(next, generator)
    assert contextvars.copy_context().run(next, generator, "over") == "over"
    assert outcomes(watch) == [("checkpoint.save", "ok")]


def test_exception_with_a_broken_property(watch):
    """A failure is recorded even if reading a property of its exception raises."""

    class OddError(Exception):
        @property
        def code(self):
            raise RuntimeError

    with pytest.raises(OddError), ckpt_observe.checkpoint("save"):
        raise OddError
    assert outcomes(watch) == [("checkpoint.save", "error")]


def test_swapped_arguments_do_not_leak_the_state(watch):
    """A state passed in place of an id, and ids that look like keys, are not in the trace store."""
    with pytest.raises(Exception, match="task"):
        Checkpointer("memory://").save({"password": "hunter2"}, "run-1")
    Checkpointer("memory://").save("sk-abcdefghijklmnop1234", {"a": 1})
    assert len(outcomes(watch)) > 1
    with sqlite3.connect(watch.settings.dir / FILENAME) as store:
        dump = "\n".join(store.iterdump())
    store.close()
    assert "hunter2" not in dump
    assert "sk-abcdefghijklmnop1234" not in dump


def test_closing_an_old_watch_does_not_stop_the_new_one(watch, tmp_path):
    """`close()` stops recording only if its watch is the active one."""
    new = ckpt_observe.observe(exporters="local", dir=tmp_path / "other", pages_dir=tmp_path / "pages", enabled=True)
    watch.close()
    with ckpt_observe.checkpoint("save"):
        pass
    assert outcomes(new) == [("checkpoint.save", "ok")]
    new.close()
