"""Output of commands: tables for people, JSON and tab-separated values for programs, errors, and a clean exit if the pipe is closed.

It works with every encoding: characters that standard output cannot show are replaced with similar ones, or escaped.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TextIO

from ckpt_observe.tracestore.formatting import PLAIN_TEXT, printable

OK = 0
ERROR = 1
USAGE = 2
NOT_FOUND = 4
INTERRUPTED = 130
"""After Ctrl-C, as in a shell: 128 + SIGINT."""


class Column(NamedTuple):
    """A column of a table. In a table, values are formatted with `format`; as tab-separated values they are printed with `str`."""

    header: str
    format: Callable[[Any], str] = str
    align_right: bool = False


def accept_every_character() -> None:
    """Let standard output and standard error replace what their encoding lacks, such as with `PYTHONIOENCODING=ascii`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN_TEXT)


def print_tsv(rows: Iterable[Sequence[Any]]) -> None:
    """Print tab-separated values without a header, for programs."""
    for row in rows:
        print("\t".join(printable(str(value)) for value in row))


def print_json(line: str) -> None:
    """Print a line of JSON. Characters that the encoding lacks become escapes of JSON, so that no value changes."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        line = re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], line)
    print(line)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], file: TextIO | None = None) -> None:
    """Print an aligned table with a header, for people. It is the same on a terminal, in a pipe and in a log."""
    file = file or sys.stdout
    lines = [[column.header for column in columns]]
    lines += [[printable(column.format(value)) for column, value in zip(columns, row, strict=True)] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.align_right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip(), file=file)


def command_description(docstring: str | None) -> str:
    """Return the docstring of a command's module as its help text, without the name of the command."""
    text = (docstring or "").partition(": ")[2]
    return text[:1].upper() + text[1:]


def print_error(message: object) -> None:
    """Print a message to standard error, so that standard output contains only the result."""
    print(f"ckpt-observe: {message}", file=sys.stderr)


def until_pipe_closes(run: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """Let a command exit silently, with code 0, if the reader of its output stops reading, as in `... | head`."""

    @wraps(run)
    def wrapper(args: Namespace) -> int:
        try:
            code = run(args)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes again at exit, which would fail again: docs.python.org/3/library/signal.html#note-on-sigpipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        return code

    return wrapper
