"""Prints spans to standard error as text trees: each operation with its phases when it ends, and the task when it ends.

A span that is delivered twice is printed twice. If the stream is closed, `send` raises ExporterRefusedError once and then drops all spans.
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
from ckpt_observe.support.formatting import PLAIN_TEXT, wants_colour
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.tracestore.tree import render, walk

_MAX_PENDING: Final = 1000
"""Phases that wait for their operation. If there are more, all are printed without it: the operation probably never arrives."""


class ConsoleExporter(Exporter):
    """Prints to `file`. If that is None, prints to what `sys.stderr` is at that moment."""

    name = "console"
    durable = False

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._pending: list[Span] = []
        self._is_closed = False

    def __repr__(self) -> str:
        return "ConsoleExporter()"

    def send(self, spans: Sequence[Span]) -> None:
        """Print tasks and complete operations. A phase waits until its operation arrives.

        Raises ExporterRefusedError (only once) if the stream is closed, and ExporterRetryError if writing fails for another reason.
        """
        if self._is_closed:
            return
        complete, pending = _split_pending(_trees((*self._pending, *spans)))
        if len(pending) > _MAX_PENDING:
            complete, pending = [*complete, *pending], []
        if complete:
            self._print(complete)
        self._pending = pending

    def close(self) -> None:
        """Print the phases whose operation never arrived."""
        pending, self._pending = self._pending, []
        if pending and not self._is_closed:
            self._print(pending)

    def _print(self, spans: list[Span]) -> None:
        file = self._file or sys.stderr
        try:
            text = "".join(f"{line}\n" for line in render(spans, colour=wants_colour(file)))
            encoding = file.encoding or "utf-8"
            file.write(text.encode(encoding, PLAIN_TEXT).decode(encoding))  # not every terminal can show ├
            file.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            raise_host_exception(error)
            if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EBADF):
                raise ExporterRetryError(f"cannot write to the console: {error}") from error
            self._is_closed = True
            raise ExporterRefusedError(f"the console is closed, so spans are no longer printed: {error}") from error


def _trees(spans: Iterable[Span]) -> list[list[Span]]:
    trees: list[list[Span]] = []
    for node in walk(spans):
        if node.depth == 0:
            trees.append([])
        trees[-1].append(node.span)
    return trees


def _split_pending(trees: Iterable[list[Span]]) -> tuple[list[Span], list[Span]]:
    """Return the spans to print, and the phases whose operation has not arrived yet."""
    complete: list[Span] = []
    pending: list[Span] = []
    for tree in trees:
        (pending if names.PHASE in tree[0].attributes else complete).extend(tree)
    return complete, pending
