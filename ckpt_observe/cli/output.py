"""How commands print: a table on a terminal, tab-separated values into a pipe, and a clean end when the reader goes away."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TextIO

from ckpt_observe.tracestore.formatting import printable

OK = 0
ERROR = 1
USAGE = 2
NOT_FOUND = 4


class Column(NamedTuple):
    """One column of a table: programs get the value itself, people what `human` makes of it."""

    header: str
    human: Callable[[Any], str] = str
    right: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], file: TextIO | None = None) -> None:
    """Aligned and with a header on a terminal; else one row a line, values as they are, parted by tabs, without header."""
    file = file or sys.stdout
    if not file.isatty():
        for row in rows:
            print("\t".join(printable(str(value)) for value in row), file=file)
        return
    lines = [[column.header for column in columns]]
    lines += [[printable(column.human(value)) for column, value in zip(columns, row, strict=True)] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width) for cell, width, column in zip(line, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip(), file=file)


def about(docstring: str | None) -> str:
    """What the file of a command says of itself, as its help: without the command, which the usage above it shows."""
    text = (docstring or "").partition(": ")[2]
    return text[:1].upper() + text[1:]


def complain(message: object) -> None:
    """To standard error, so that the output stays what was asked for."""
    print(f"ckpt-observe: {message}", file=sys.stderr)


def until_pipe_closes(run: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """Makes `... | head` end without a word: who has read enough is no error."""

    @wraps(run)
    def wrapper(args: Namespace) -> int:
        try:
            code = run(args)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more at exit, and that must not fail again: docs.python.org/3/library/signal.html#note-on-sigpipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        return code

    return wrapper
