"""The end of an operation that nobody can end any more, although its process lives.

If a signal handler of the host program raises at the first instruction of `__exit__`, the operation is dropped without an end.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

_BEGIN: Final = f'["{events.BEGIN}"'.encode()
_END: Final = f'["{events.END}"'.encode()
_OUTCOME: Final = {names.OUTCOME: "cancelled", names.ERROR_CLASS: "cancelled", names.ERROR_CODE: "cancelled.requested"}


def missing_end(data: bytes) -> bytes | None:
    """Return an `end` line for these lines of a page, with the outcome `cancelled`. None if they have one, or have no begin.

    The lines are ours and complete, so they are not validated: `flush()` may run this in the main thread of the host program, and
    msgspec, which calls Python code to look up a type, drops what a signal handler raises there.
    """
    begin, *later_lines = data.split(b"\n")
    if not begin.startswith(_BEGIN) or any(line.startswith(_END) for line in later_lines):
        return None
    _, span_id, start, *_ = msgspec.json.decode(begin)
    return msgspec.json.encode([events.END, span_id, max(time.time_ns(), start), _OUTCOME, [], 0]) + b"\n"
