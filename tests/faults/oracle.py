"""Compares what the worker reported to the oracle with what was delivered."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line
from tests.faults.worker import FileExporter


class LastState(NamedTuple):
    """The last state of an operation that the oracle knows. If the worker died within a step, several phases and outcomes are possible."""

    has_begun: bool
    phases: frozenset[str | None]
    """Possible innermost phases."""
    ended: frozenset[bool]
    """Possible answers to whether it has ended."""


def read_oracle(messages: bytes) -> dict[str, LastState]:
    """Return the last state of each operation, by key. All messages are complete: the kernel writes short ones to a pipe atomically."""
    steps: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for message in messages.decode().splitlines():
        sign, key, step = message.split(" ", 2)
        steps[key].append((sign, step))
    return {key: _last_state(messages) for key, messages in steps.items() if ("!", "begin") not in messages}


def _last_state(messages: list[tuple[str, str]]) -> LastState:
    running: list[str] = []
    before: list[str] = []
    for sign, step in messages:
        before = list(running)
        if sign == ">" and step.startswith("+"):
            running.append(step[1:])
        elif sign == ">" and step.startswith("-"):
            running.pop()
    sign, step = messages[-1]
    after = list(running)
    if sign == "<" and step.startswith("+"):
        after.append(step[1:])
    elif sign == "<" and step.startswith("-"):
        after.pop()
    if sign == ">":
        before = after
    ended = {False} if step != "end" else {True} if sign == ">" else {True, False}
    innermost = frozenset(stack[-1] if stack else None for stack in (before, after))
    return LastState((sign, step) != ("<", "begin"), innermost, frozenset(ended))


class Tally(Counter[str]):
    """Counts over many runs."""

    def __str__(self) -> str:
        return ", ".join(f"{self[name]:,} {name}" for name in sorted(self))


def adopt(directory: Path) -> int:
    """Deliver the journal of the dead process, as a later process would. Return the number of interrupted operations."""
    delivery = Delivery(directory / "state", [FileExporter(directory / "state")])
    delivery.start()
    assert delivery.close(60)
    return delivery.interrupted


def delivered(directory: Path) -> dict[str, list]:
    """Return every copy of every operation's span that reached the exporter, by key."""
    spans = defaultdict(list)
    path = directory / "state" / "spans.jsonl"
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            span = from_json_line(line)
        except msgspec.DecodeError:  # the exporter was killed during a write: it does not have this span
            continue
        if names.OPERATION in span.attributes:
            spans[span.attributes[names.ID]].append(span)
    return spans


def compare(messages: bytes, directory: Path) -> Tally:
    """Count lost and wrong records of one run."""
    return compare_spans(messages, delivered(directory))


def compare_spans(messages: bytes, spans_by_key: dict[str, list]) -> Tally:
    """The same for spans that were delivered elsewhere. Removes those that were expected from `spans_by_key`."""
    states = read_oracle(messages)
    tally = Tally(
        {"begun": 0, "ended": 0, "in flight": 0, "begun lost": 0, "ended lost": 0, "wrong phase": 0, "reported twice": 0, "wrong end": 0}
    )
    for key, state in states.items():
        spans = spans_by_key.pop(key, [])
        outcomes = {span.attributes[names.OUTCOME] for span in spans}
        interrupted = [span for span in spans if span.attributes[names.OUTCOME] == "interrupted"]
        tally["begun"] += state.has_begun
        tally["ended"] += state.ended == {True}
        tally["in flight"] += bool(interrupted)
        if not spans:
            tally["ended lost" if state.ended == {True} else "begun lost"] += state.has_begun
            continue
        tally["wrong end"] += len(outcomes) != 1 or bool(interrupted) not in {not ended for ended in state.ended}
        tally["reported twice"] += len(interrupted) > 1
        tally["wrong phase"] += any(span.attributes.get(names.ERROR_PHASE) not in state.phases for span in interrupted)
    tally["invented"] = len(spans_by_key)
    return tally


LOSSES = ("begun lost", "ended lost", "wrong phase", "reported twice", "wrong end", "invented")
