"""Ids come from the system, not from the program's `random`."""

from __future__ import annotations

import os
import random

import ckpt_observe
from ckpt_observe.record import trace_context


def test_a_reseeded_random_does_not_repeat_ids():
    """A training loop that seeds `random` at every epoch gets new ids all the same."""
    made = []
    for _ in range(3):
        random.seed(42)
        made += [trace_context.new_span_id() for _ in range(1000)] + [trace_context.new_trace_id() for _ in range(10)]
    assert len(set(made)) == len(made)


def test_random_is_not_moved(recorded):
    """Recording leaves the sequence of `random` where it was."""
    random.seed(42)
    before = random.getstate()
    for _ in range(600):
        with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
            pass
    assert random.getstate() == before


def test_shape():
    """16 and 32 lower-case hex digits."""
    assert len(trace_context.new_span_id()) == 16
    assert len(trace_context.new_trace_id()) == 32
    assert int(trace_context.new_trace_id(), 16)


def test_forked_children_do_not_repeat_ids():
    """Children of one parent, forked with ids in stock, make different ones."""
    trace_context.new_span_id()  # so that there is a stock
    made = []
    for _ in range(2):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, "".join(trace_context.new_span_id() for _ in range(100)).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            text = pipe.read().decode()
        os.waitpid(child, 0)
        made += [text[at : at + 16] for at in range(0, 1600, 16)]
    made += [trace_context.new_span_id() for _ in range(1000)]
    assert len(set(made)) == len(made) == 1200
