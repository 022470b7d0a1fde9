"""Every span knows its ancestors, from the root on."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from opentelemetry.sdk.trace import TracerProvider

import ckpt_observe
from ckpt_observe import exporter_selection
from ckpt_observe.exporter import Exporter
from ckpt_observe.record.operation import Operation


class MemoryExporter(Exporter):
    name = "local"

    def __init__(self):
        self.spans = []

    def send(self, spans):
        self.spans += spans

    def close(self): ...


@pytest.fixture
def spans(tmp_path, monkeypatch):
    """A function that returns the spans that an exporter received, by name."""
    exporter = MemoryExporter()
    monkeypatch.setitem(exporter_selection.EXPORTERS, "local", lambda _: exporter)
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path)

    def read():
        assert watch.flush(60)
        return {span.name: span for span in exporter.spans}

    yield read
    watch.close()


def ancestor_names(span):
    return span.ancestors if span.ancestors is UNSET else [name for _, name in span.ancestors]


def test_nested_spans(spans):
    """Nested tasks, operations and phases know the name and id of each span above."""
    with ckpt_observe.task("a b.c"), ckpt_observe.checkpoint("restore") as restore, restore.phase("apply"), restore.phase("read"):
        pass
    by_name = spans()
    assert ancestor_names(by_name["task a b.c"]) == []
    assert ancestor_names(by_name["checkpoint.read"]) == ["task a b.c", "checkpoint.restore", "checkpoint.apply"]
    for span in by_name.values():
        assert [id for id, _ in span.ancestors] == [by_name[name].span_id for _, name in span.ancestors]
        assert not span.ancestors or span.ancestors[-1][0] == span.parent_span_id


def test_root_without_a_task(spans):
    """A root has no ancestors, which is not the same as unknown ancestors."""
    with ckpt_observe.checkpoint("save") as save, save.phase("write"):
        pass
    by_name = spans()
    assert (ancestor_names(by_name["checkpoint.save"]), ancestor_names(by_name["checkpoint.write"])) == ([], ["checkpoint.save"])


def test_foreign_span_makes_ancestors_unknown(spans):
    """Below a span of another library the ancestors are unknown, even if a task is above it."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("theirs")
    with ckpt_observe.task("agent"), tracer.start_as_current_span("step"), ckpt_observe.checkpoint("save") as save, save.phase("write"):
        pass
    by_name = spans()
    assert ancestor_names(by_name["task agent"]) == []
    assert (ancestor_names(by_name["checkpoint.save"]), ancestor_names(by_name["checkpoint.write"])) == (UNSET, UNSET)


def test_laminar_span_passes_on_ancestors_session_and_user(spans):
    """Below a span with Laminar's attributes, its ancestors, session and user are used; the task's own user takes precedence."""
    attributes = {
        "lmnr.span.path": ["agent", "step"],
        "lmnr.span.ids_path": ["00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"],
        "lmnr.association.properties.session_id": "s1",
        "lmnr.association.properties.user_id": "u1",
    }
    with TracerProvider(shutdown_on_exit=False).get_tracer("lmnr").start_as_current_span("step", attributes=attributes) as above:
        span_uuid = f"00000000-0000-0000-{above.context.span_id >> 48:04x}-{above.context.span_id & (1 << 48) - 1:012x}"
        above.set_attribute("lmnr.span.ids_path", [attributes["lmnr.span.ids_path"][0], span_uuid])
        with ckpt_observe.task("train", user="mine"), ckpt_observe.checkpoint("save"):
            pass
    save = spans()["checkpoint.save"]
    assert ancestor_names(save) == ["agent", "step", "task train", "checkpoint.save"][:-1]
    assert (save.attributes["session.id"], save.attributes["user.id"]) == ("s1", "mine")


def test_ancestors_add_no_space_to_the_line(spans):
    """A line with a space takes the slow path, which searches it for secrets. Ancestors must not add one."""
    with ckpt_observe.task("train"), Operation("restore"), Operation("load") as inner:
        assert [entry.split(".", 1)[1] for entry in inner.ancestors] == ["task.train", "operation.restore"]
