"""The words of the journal: what an operation says of itself while it runs, as JSON lines and as marks.

Every line is `[word, operation id, time in Unix ns, ...]`; ids are hex. What follows the time:

    begin  kind, name, trace id, parent span id, attributes,    kind is `task` or `operation`; two maps of attributes
           attributes
    phase  number, parent, name                                 a phase that the marks have no place for begins
    done   [name, number, parent, start, end, attributes]       and ends
    link   trace id, span id, attributes
    event  name, attributes
    end    attributes, phases, offset                           `checkpoint.outcome` is `ok` unless they say otherwise

`phases` in `end` are lists like that in `done`, of those that had marks; `offset` is to be added to their times, which are of the
monotonic clock. A phase's parent is the number of another phase, 0 for the
operation itself, or the hex id of somebody else's span. Its
attributes are a map, or just `[bytes in, bytes out]`. Its own span id follows from the operation's and its number: `phase_span_id`.

While an operation runs, its phases are marks: two 64-bit words for each of the first 14, begin and end, so that a phase costs two
stores instead of two lines. Those of phase n are the words 2 n and 2 n + 1 of the page. A word is `ns since the operation began << 12 | parent << 8 | code of the phase` (1 at the end).
Word 1 is set when there was no room for a line: then phases that have begun by their lines may have ended.

An operation whose owner died has no `end`; whoever finds it writes one, with outcome `interrupted`, from its lines and marks.
"""

from __future__ import annotations

from typing import Final

from ckpt_observe.semconv.values import PHASES

BEGIN: Final = "begin"
PHASE: Final = "phase"
DONE: Final = "done"
LINK: Final = "link"
EVENT: Final = "event"
END: Final = "end"

TASK: Final = "task"
OPERATION: Final = "operation"

CUT: Final = 1
MARKED_PHASES: Final = 14
PHASE_CODES: Final = {name: code for code, name in enumerate(PHASES, 1)}
"""The place of a phase in the registry is its code in the journal: new ones are added at the end."""

ANCESTORS: Final = "ckpt_observe.ancestors"
"""Among the attributes of a `begin`, not of a span: the `ancestor` of each span above it, the root first; there where all are known."""

_ODD: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: consecutive numbers land far apart


def ancestor(span_id: str, kind: str, name: str) -> str:
    """A span above, as a journal's line keeps it: without spaces, which would send the line the slow way. `kind` is empty if not ours."""
    return f"{span_id}.{kind}.{name}"


def phase_span_id(operation: str, number: int) -> str:
    """The span id of a phase. A bijection of the operation's random id, so as unique as that one."""
    return f"{(int(operation, 16) + number * _ODD) & 0xFFFF_FFFF_FFFF_FFFF:016x}"
