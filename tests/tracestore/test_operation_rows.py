"""Operations as rows: what is stored comes back, whatever a program or another library puts into a span."""

from __future__ import annotations

import random
import string

import msgspec
import pytest

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.testing.spans import make_span
from ckpt_observe.tracestore import OperationFilter, TraceReader


def random_value(numbers, depth=2):
    kind = numbers.randrange(8 if depth else 5)
    if kind == 0:
        return numbers.randrange(-(1 << 63), 1 << 63)
    if kind == 1:
        return numbers.random() * 10 ** numbers.randrange(-300, 300)
    if kind == 2:
        return numbers.random() < 0.5
    if kind == 3:
        return "".join(numbers.choices(string.printable + "öß漢\x00\u2028", k=numbers.randrange(30)))
    if kind == 4:
        return None
    if kind == 5:
        return {str(numbers.random()): random_value(numbers, depth - 1) for _ in range(3)}
    return [random_value(numbers, depth - 1) for _ in range(3)]


def random_spans(numbers):
    """An operation and phases, each with attributes of any type, also under the names that have columns."""
    known_names = [names.OUTCOME, names.TASK_NAME, names.TASK_ID, names.SESSION_ID, names.ERROR_CLASS, names.ID, names.SIZE_STORED, "own"]
    spans = []
    for number in range(5, 0, -1):
        attributes = {name: random_value(numbers) for name in numbers.sample(known_names, 4)}
        if number > 1:
            attributes[names.PHASE] = numbers.choice(["write", "serialize", "ö", ""])
        elif numbers.random() < 0.8:
            attributes[names.OPERATION] = numbers.choice(["save", "load", 7])
        spans.append(
            make_span(
                number,
                numbers.choice(["checkpoint.write", "checkpoint.save", "task x", "ö", ""]),
                parent=numbers.choice([0, 1, 1, 1, 2, number, 99]),
                milliseconds=numbers.randrange(-5, 50),
                status=numbers.choice(["ok", "error", "unset"]),
                attributes=attributes,
                events=tuple(SpanEvent("e", numbers.randrange(1 << 62), {"a": random_value(numbers)}) for _ in range(numbers.randrange(2))),
                links=tuple(SpanLink("a" * 32, "b" * 16, {"a": random_value(numbers)}) for _ in range(numbers.randrange(2))),
                resource={"service.name": random_value(numbers)},
            )
        )
    numbers.shuffle(spans)
    return spans


def test_any_span_round_trips(writer, path):
    """Spans with any attributes, parents, states, events and links are read as they were written, in any order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    batches = []
    for trace in range(1, 101):
        batches.append([msgspec.structs.replace(span, trace_id=f"{trace:032x}") for span in random_spans(numbers)])
        writer.write(batches[-1])
    with TraceReader(path) as reader:
        for trace, batch in enumerate(batches, 1):
            stored = {span.span_id: span for span in reader.spans(f"{trace:032x}")}
            assert stored.keys() == {span.span_id for span in batch}
            for span in batch:
                # A phase in the row of its operation has the resource of its operation, which is of the same process.
                assert msgspec.structs.replace(stored[span.span_id], resource=span.resource) == span
            [summary] = reader.find(f"{trace:032x}")
            assert summary.spans == len(batch)


@pytest.mark.parametrize("value", [10**40, "large", [1], {"a": 1}, True, -1, 1.5], ids=str)
def test_size_of_any_type(writer, reader, value):
    """A size that is not a number of bytes does not keep an operation from being stored and found."""
    attributes = {names.OPERATION: "save", names.SIZE_STORED: value}
    if value == 10**40:
        attributes[names.SIZE_STORED] = (1 << 64) - 1  # the largest number that JSON of ours can have
    writer.write([make_span(1, "checkpoint.save", attributes=attributes)])
    assert len(list(reader.operations())) == 1
    list(reader.operations(OperationFilter(min_bytes=10**40, max_bytes=-(10**40))))


@pytest.mark.parametrize(
    "text",
    ["'; DROP TABLE operation; --", "%", "_", "\x00", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")],
    ids=repr,
)
def test_filters_take_text_literally(writer, reader, text):
    """A value of a filter is a parameter, never a part of the query."""
    writer.write([make_span(1, "checkpoint.save", attributes={names.OPERATION: "save", names.TASK_NAME: text})])
    writer.write([make_span(2, "checkpoint.save", attributes={names.OPERATION: "save", names.TASK_NAME: "other"})])
    assert [int(group.span.span_id, 16) for group in reader.operations(OperationFilter(task_name=text))] == [1]
