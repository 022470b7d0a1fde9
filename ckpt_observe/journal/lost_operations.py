"""The end of an operation that nobody can end any more, although its process lives.

If a signal handler of the host program raises at the first instruction of `__exit__`, the operation is dropped without an end.
"""

from __future__ import annotations

import time

import msgspec

from ckpt_observe.journal.page_reader import begin_line, parse_lines
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events


def missing_end(data: bytes) -> bytes | None:
    """Return an `end` line for these lines of a page, with the outcome `cancelled`. None if they have one, or have no begin."""
    lines = parse_lines(data)
    begin = begin_line(lines)
    if begin is None or any(line[0] == events.END for line in lines):
        return None
    end = [events.END, begin[1], max(time.time_ns(), begin[2]), _OUTCOME, [], 0]
    return msgspec.json.encode(end) + b"\n"


_OUTCOME = {names.OUTCOME: "cancelled", names.ERROR_CLASS: "cancelled", names.ERROR_CODE: "cancelled.requested"}
