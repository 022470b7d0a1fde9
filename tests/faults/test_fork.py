"""Children forked by os.fork and multiprocessing have their own journals, which the parent adopts after their death."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

import ckpt_observe
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.faults

CHILDREN = 20


def work(key: str, ending: str) -> None:
    """Save three times, and die during the fourth save."""
    for number in range(3):
        with ckpt_observe.checkpoint("save", id=f"{key} ended {number}") as operation, operation.phase("write"):
            pass
    with ckpt_observe.checkpoint("save", id=f"{key} open") as operation, operation.phase("commit"):
        if ending == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)


def check_children(watch, stored_spans):
    assert watch.flush(30)
    outcomes = {}
    for span in stored_spans():
        if names.OPERATION in span.attributes:
            assert span.attributes[names.ID] not in outcomes, "reported twice"
            outcomes[span.attributes[names.ID]] = (span.attributes[names.OUTCOME], span.attributes.get(names.ERROR_PHASE))
    expected = {f"{child} ended {number}": ("ok", None) for child in range(CHILDREN) for number in range(3)}
    expected |= {f"{child} open": ("interrupted", "commit") for child in range(CHILDREN)}
    assert outcomes == expected | {"parent": ("ok", None)}


@pytest.mark.parametrize("ending", ["SIGKILL", "os._exit"])
@pytest.mark.parametrize("before", ["with", "without"])
def test_os_fork(watch, stored_spans, ending, before):
    """Finished operations of the children are delivered, running ones as interrupted, once each, whether the parent has a journal or not."""
    if before == "with":
        with ckpt_observe.checkpoint("save", id="parent"):
            pass
    children = []
    for number in range(CHILDREN):
        child = os.fork()
        if not child:
            work(str(number), ending)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    if before == "without":
        with ckpt_observe.checkpoint("save", id="parent"):
            pass
    check_children(watch, stored_spans)


@pytest.mark.parametrize("ending", ["SIGKILL", "os._exit"])
def test_multiprocessing(watch, stored_spans, ending):
    """The same with children of multiprocessing, forked during an operation of the parent."""
    with ckpt_observe.checkpoint("save", id="parent"):
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(str(number), ending)) for number in range(CHILDREN)]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
    assert {child.exitcode for child in children} == {-signal.SIGKILL if ending == "SIGKILL" else 0}
    check_children(watch, stored_spans)


def test_child_outlives_its_parent(watch, stored_spans):
    """The journal of a dead parent is adopted although its child is alive."""
    reader, writer = os.pipe()
    parent = os.fork()
    if not parent:
        with ckpt_observe.checkpoint("save", id="dies") as operation, operation.phase("write"):
            child = os.fork()
            if not child:
                os.close(reader)
                signal.pause()
            os.write(writer, b"%d" % child)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int(os.read(reader, 20))
    try:
        with ckpt_observe.checkpoint("save", id="parent"):
            pass
        assert watch.flush(30)
        outcomes = {
            span.attributes[names.ID]: span.attributes[names.OUTCOME] for span in stored_spans() if names.OPERATION in span.attributes
        }
        assert outcomes == {"dies": "interrupted", "parent": "ok"}
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        os.close(writer)
