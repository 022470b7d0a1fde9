"""Spans as text trees on standard error, for a developer who watches: each operation with its phases, and the task when it ends.

Repeats are printed again. Once nobody reads any more, that is said once and all else is dropped.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore.formatting import wants_colour
from ckpt_observe.tracestore.tree import render, walk

_MOST_HELD: Final = 1000
"""Phases that wait for their operation; more than a batch has, so those of an operation that never comes do not pile up."""


class ConsoleExporter(Exporter):
    """Prints to `file`, or to what standard error is at that moment."""

    name = "console"
    durable = False

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._held: list[Span] = []
        self._unread = False

    def __repr__(self) -> str:
        return "ConsoleExporter()"

    def send(self, spans: Sequence[Span]) -> None:
        """Prints what is complete; raises ExporterRefusedError once when nobody reads, ExporterRetryError when it cannot be written now."""
        if self._unread:
            return
        complete, held = _sort(_trees((*self._held, *spans)))
        if len(held) > _MOST_HELD:
            complete, held = [*complete, *held], []
        if complete:
            self._print(complete)
        self._held = held

    def close(self) -> None:
        """Prints the phases whose operation never came."""
        held, self._held = self._held, []
        if held and not self._unread:
            self._print(held)

    def _print(self, spans: list[Span]) -> None:
        file = self._file or sys.stderr
        try:
            text = "".join(f"{line}\n" for line in render(spans, colour=wants_colour(file)))
            encoding = file.encoding or "utf-8"
            file.write(text.encode(encoding, "backslashreplace").decode(encoding))  # a terminal without ├ shows its code
            file.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EBADF):
                raise ExporterRetryError(f"the console cannot be written: {error}") from error
            self._unread = True
            raise ExporterRefusedError(f"nobody reads the console: {error}") from error


def _trees(spans: Iterable[Span]) -> list[list[Span]]:
    trees: list[list[Span]] = []
    for node in walk(spans):
        if node.depth == 0:
            trees.append([])
        trees[-1].append(node.span)
    return trees


def _sort(trees: Iterable[list[Span]]) -> tuple[list[Span], list[Span]]:
    """Trees to print, and phases that come before their operation, to keep."""
    complete: list[Span] = []
    held: list[Span] = []
    for tree in trees:
        (held if names.PHASE in tree[0].attributes else complete).extend(tree)
    return complete, held
