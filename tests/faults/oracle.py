"""What the oracle saw, what was delivered, and whether the two agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line
from tests.faults.worker import FileExporter


class Seen(NamedTuple):
    """The last thing that the oracle knows of an operation: which phases may be running now, whether it must be and may be over."""

    began: bool
    phases: frozenset[str | None]
    ended: frozenset[bool]


def read_oracle(messages: bytes) -> dict[str, Seen]:
    """By key. A last message without newline was never completed by the kernel: there is none, for it takes them whole."""
    steps: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for message in messages.decode().splitlines():
        sign, key, what = message.split(" ", 2)
        steps[key].append((sign, what))
    return {key: _judge(told) for key, told in steps.items() if ("!", "begin") not in told}


def _judge(told: list[tuple[str, str]]) -> Seen:
    running: list[str] = []
    before: list[str] = []
    for sign, what in told:
        before = list(running)
        if sign == ">" and what.startswith("+"):
            running.append(what[1:])
        elif sign == ">" and what.startswith("-"):
            running.pop()
    sign, what = told[-1]
    after = list(running)
    if sign == "<" and what.startswith("+"):
        after.append(what[1:])
    elif sign == "<" and what.startswith("-"):
        after.pop()
    if sign == ">":
        before = after
    over = {False} if what != "end" else {True} if sign == ">" else {True, False}
    innermost = frozenset(stack[-1] if stack else None for stack in (before, after))
    return Seen((sign, what) != ("<", "begin"), innermost, frozenset(over))


class Tally(Counter[str]):
    """Counts over many runs."""

    def __str__(self) -> str:
        return ", ".join(f"{self[name]:,} {name}" for name in sorted(self))


def adopt(directory: Path) -> int:
    """What a later process does: deliver what the dead one left; how many operations it reports as interrupted."""
    delivery = Delivery(directory / "state", [FileExporter(directory / "state")])
    delivery.start()
    assert delivery.close(60)
    return delivery.interrupted


def delivered(directory: Path) -> dict[str, list]:
    """Every copy of every operation's span that reached the exporter, by key."""
    found = defaultdict(list)
    path = directory / "state" / "spans.jsonl"
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            span = from_json_line(line)
        except msgspec.DecodeError:  # the exporter was killed in the middle of a write: it does not have that one
            continue
        if names.OPERATION in span.attributes:
            found[span.attributes[names.ID]].append(span)
    return found


def compare(messages: bytes, directory: Path) -> Tally:
    """The losses and lies of one run."""
    seen, found = read_oracle(messages), delivered(directory)
    tally = Tally(
        {"begun": 0, "ended": 0, "in flight": 0, "begun lost": 0, "ended lost": 0, "wrong phase": 0, "reported twice": 0, "wrong end": 0}
    )
    for key, one in seen.items():
        spans = found.pop(key, [])
        outcomes = {span.attributes[names.OUTCOME] for span in spans}
        interrupted = [span for span in spans if span.attributes[names.OUTCOME] == "interrupted"]
        tally["begun"] += one.began
        tally["ended"] += one.ended == {True}
        tally["in flight"] += bool(interrupted)
        if not spans:
            tally["ended lost" if one.ended == {True} else "begun lost"] += one.began
            continue
        tally["wrong end"] += len(outcomes) != 1 or bool(interrupted) not in {not over for over in one.ended}
        tally["reported twice"] += len(interrupted) > 1
        tally["wrong phase"] += any(span.attributes.get(names.ERROR_PHASE) not in one.phases for span in interrupted)
    tally["invented"] = len(found)
    return tally


LOSSES = ("begun lost", "ended lost", "wrong phase", "reported twice", "wrong end", "invented")
