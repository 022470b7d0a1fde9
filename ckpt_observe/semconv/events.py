"""The journal's format: how a running operation is recorded, as JSON lines and as marks.

Every line is `[event, operation id, time in Unix ns, ...]`; ids are hex. The fields after the time are:

    begin  kind, name, trace id, parent span id, attributes,    kind is `task` or `operation`; the second map of attributes is shared by
           shared attributes                                    many operations, and the first one overrides it
    phase  number, parent, name                                 a phase for which no mark is free has started
    done   [name, number, parent, start, end, attributes]       and ended
    link   trace id, span id, attributes
    event  name, attributes
    tensors  text                                               a part of a packed `TensorSummary`; delivery removes it
    end    attributes, phases, offset                           `checkpoint.outcome` is `ok` unless the attributes contain another

`phases` in `end` are the phases that had marks, as lists like the one in `done`. Add `offset` to their times to get
Unix time. The parent of a phase is the number of another phase, 0 for the operation itself, or the hex id of a span that is not ours. Its
attributes are a map, or only `[bytes in, bytes out]`. Its span id is computed from the operation's id and the phase's number: `phase_span_id`.

While an operation runs, its first 14 phases are marks: two 64-bit words each, for start and end, so that a phase costs two stores instead of
two lines. Phase n has the words 2 n and 2 n + 1 of the page. A word is `ns since the operation began << 12 | parent << 8 | code of the phase`
(the code is 1 in an end). Word 1 is set if there was no room for a line; then a phase with a `phase` line may have ended without a `done` line.

If the process dies, the operation has no `end`. The process that recovers the journal writes one from the lines and marks, with the outcome
`interrupted`.
"""

from __future__ import annotations

from typing import Final

from ckpt_observe.semconv.values import PHASES

BEGIN: Final = "begin"
PHASE: Final = "phase"
DONE: Final = "done"
LINK: Final = "link"
EVENT: Final = "event"
TENSORS: Final = "tensors"
END: Final = "end"

TASK: Final = "task"
OPERATION: Final = "operation"

CUT: Final = 1
"""Index of the word that is set if there was no room for a line."""
MARKED_PHASES: Final = 14
"""Number of phases that have marks."""
PHASE_CODES: Final = {name: code for code, name in enumerate(PHASES, 1)}
"""The position of a phase in `PHASES` is its code in the journal, so new phases are appended."""

ANCESTORS: Final = "ckpt_observe.ancestors"
"""An attribute of `begin` lines, not of spans: `ancestor()` of each enclosing span, root first. Present only if all of them are known."""

TRACE_STATE: Final = "ckpt_observe.trace_state"
"""An attribute of `begin` lines, not of spans: the W3C `tracestate` of the parent, packed. Present only if the parent has one."""

UNSAMPLED: Final = "ckpt_observe.unsampled"
"""An attribute of `begin` lines, not of spans: present if the trace is not sampled, so that the operation is only counted in the metrics.
Its value says what is exported as spans all the same: NOTHING, or FAILURES, which are failed and interrupted operations."""
NOTHING: Final = "nothing"
FAILURES: Final = "failures"

_ODD: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, so that consecutive numbers give very different ids


def ancestor(span_id: str, kind: str, name: str) -> str:
    """Return id, kind (`task` or `operation`) and name of an enclosing span as text. `kind` is empty if the span is not ours.

    The separator is not a space, because a line with spaces is redacted the slow way.
    """
    return f"{span_id}.{kind}.{name}"


def pack_trace_state(header: str) -> str:
    """Return a `tracestate` without `=`, because a line with `=` is redacted the slow way. Its keys contain no `:`."""
    return header.replace("=", ":")


def unpack_trace_state(packed: str) -> str:
    """Return the `tracestate` that was packed. An empty string if the line had no room for all of it."""
    return "" if "…" in packed else ",".join(member.replace(":", "=", 1) for member in packed.split(","))


def phase_span_id(operation: str, number: int) -> str:
    """Return the span ID of the phase with this number. Different operation IDs give different results, so it is as unique as they are."""
    return derive_span_id(int(operation, 16), number)


def derive_span_id(operation: int, number: int) -> str:
    """Return the same for the ID of the operation as a number."""
    return "%016x" % ((operation + number * _ODD) & 0xFFFF_FFFF_FFFF_FFFF)
