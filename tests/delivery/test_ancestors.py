"""The chain from the root to each span, from the record to the assembled span."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from opentelemetry.sdk.trace import TracerProvider

import ckpt_observe
from ckpt_observe import wiring
from ckpt_observe.exporter import Exporter
from ckpt_observe.record.operation import Operation


class Kept(Exporter):
    name = "local"

    def __init__(self):
        self.spans = []

    def send(self, spans):
        self.spans += spans

    def close(self): ...


@pytest.fixture
def spans(tmp_path, monkeypatch):
    """What an exporter gets of the operations that a test runs, by name."""
    kept = Kept()
    monkeypatch.setitem(wiring.EXPORTERS, "local", lambda _: kept)
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path)

    def read():
        assert watch.flush()
        return {span.name: span for span in kept.spans}

    yield read
    watch.close()


def path(span):
    return span.ancestors if span.ancestors is UNSET else [name for _, name in span.ancestors]


def test_chain_goes_from_the_root_to_the_parent(spans):
    """Tasks, operations and phases in one another: each knows all above it, by name and id."""
    with ckpt_observe.task("a b.c"), ckpt_observe.checkpoint("restore") as restore, restore.phase("apply"), restore.phase("read"):
        pass
    found = spans()
    assert path(found["task a b.c"]) == []
    assert path(found["checkpoint.read"]) == ["task a b.c", "checkpoint.restore", "checkpoint.apply"]
    for span in found.values():
        assert [id for id, _ in span.ancestors] == [found[name].span_id for _, name in span.ancestors]
        assert not span.ancestors or span.ancestors[-1][0] == span.parent_span_id


def test_root_without_a_task(spans):
    """An operation that is a root has nothing above it, and that is known."""
    with ckpt_observe.checkpoint("save") as save, save.phase("write"):
        pass
    found = spans()
    assert (path(found["checkpoint.save"]), path(found["checkpoint.write"])) == ([], ["checkpoint.save"])


def test_somebody_elses_span_breaks_the_chain(spans):
    """Beneath a span of another library the chain is not known, though a task is above it."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("theirs")
    with ckpt_observe.task("daemon"), tracer.start_as_current_span("step"), ckpt_observe.checkpoint("save") as save, save.phase("write"):
        pass
    found = spans()
    assert path(found["task daemon"]) == []
    assert (path(found["checkpoint.save"]), path(found["checkpoint.write"])) == (UNSET, UNSET)


def test_span_of_laminar_brings_its_chain_session_and_user(spans):
    """Beneath a span that Laminar's processor has marked, the chain goes on from there, and its session and user are taken over, by tasks too."""
    marks = {
        "lmnr.span.path": ["daemon", "step"],
        "lmnr.span.ids_path": ["00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"],
        "lmnr.association.properties.session_id": "s1",
        "lmnr.association.properties.user_id": "u1",
    }
    with TracerProvider(shutdown_on_exit=False).get_tracer("lmnr").start_as_current_span("step", attributes=marks) as above:
        marked = f"00000000-0000-0000-{above.context.span_id >> 48:04x}-{above.context.span_id & (1 << 48) - 1:012x}"
        above.set_attribute("lmnr.span.ids_path", [marks["lmnr.span.ids_path"][0], marked])
        with ckpt_observe.task("train", user="mine"), ckpt_observe.checkpoint("save"):
            pass
    save = spans()["checkpoint.save"]
    assert path(save) == ["daemon", "step", "task train", "checkpoint.save"][:-1]
    assert (save.attributes["session.id"], save.attributes["user.id"]) == ("s1", "mine")


def test_chain_keeps_the_line_on_the_fast_way(spans):
    """A line with a space is looked through for secrets; the chain brings none of its own."""
    with ckpt_observe.task("train"), Operation("restore"), Operation("load") as inner:
        assert [each.split(".", 1)[1] for each in inner.ancestors] == ["task.train", "operation.restore"]
