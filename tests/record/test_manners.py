"""What the host must never feel: observation that is off, contexts left elsewhere, odd arguments, odd exceptions."""

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


def test_a_phase_without_an_operation_takes_what_a_phase_takes():
    """Code with phases runs the same when nothing is observed."""
    with ckpt_observe.phase("write") as phase:
        phase.set({"checkpoint.phase.bytes_in": 1})
        assert phase is not None


def test_left_in_another_context(watch):
    """A scope entered in one context and left in another, as by a framework's generator, ends once and raises nothing."""

    def session():
        with ckpt_observe.checkpoint("save"):
            yield

    generator = session()
    contextvars.copy_context().run(next, generator)
    assert contextvars.copy_context().run(next, generator, "over") == "over"
    assert outcomes(watch) == [("checkpoint.save", "ok")]


def test_an_exception_that_cannot_be_asked(watch):
    """A failure whose exception has a property that raises is recorded all the same."""

    class OddError(Exception):
        @property
        def code(self):
            raise RuntimeError

    with pytest.raises(OddError), ckpt_observe.checkpoint("save"):
        raise OddError
    assert outcomes(watch) == [("checkpoint.save", "error")]


def test_a_state_in_the_wrong_place_is_not_telemetry(watch):
    """Arguments that were swapped, and ids that look like keys, do not reach the store."""
    with pytest.raises(Exception, match="task"):
        Checkpointer("memory://").save({"password": "hunter2"}, "run-1")
    Checkpointer("memory://").save("sk-abcdefghijklmnop1234", {"a": 1})
    assert len(outcomes(watch)) > 1
    with sqlite3.connect(watch.settings.dir / FILENAME) as store:
        dump = "\n".join(store.iterdump())
    store.close()
    assert "hunter2" not in dump
    assert "sk-abcdefghijklmnop1234" not in dump


def test_closing_an_old_watch_leaves_the_new_one_on(watch, tmp_path):
    """Only the watch that observes now can be switched off."""
    new = ckpt_observe.observe(exporters="local", dir=tmp_path / "other", pages_dir=tmp_path / "pages", enabled=True)
    watch.close()
    with ckpt_observe.checkpoint("save"):
        pass
    assert outcomes(new) == [("checkpoint.save", "ok")]
    new.close()
