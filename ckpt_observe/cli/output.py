"""Output of commands: tables for people, JSON and tab-separated values for programs, errors, and a clean exit if the pipe is closed.

On a terminal, tables have colours and fit its width; elsewhere they are the same text. Every encoding works: characters that standard
output cannot show are replaced with similar ones, or escaped.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from ckpt_observe.cli.exit_codes import ERROR, OK
from ckpt_observe.errors import ConfigError
from ckpt_observe.support.formatting import PLAIN_TEXT, printable

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Column(NamedTuple):
    """A column of a table. In a table, values are formatted with `format`; as tab-separated values they are printed with `str`."""

    header: str
    format: Callable[[Any], str] = str
    align_right: bool = False
    style: Callable[[Any], str] | None = None
    """Returns the style of a value on a terminal, such as `red`, in the words of rich; an empty string for none."""
    whole: bool = False
    """Whether values such as IDs and times are folded after names if the terminal is too narrow. Numbers are folded last in any case."""


def prepare_streams() -> None:
    """Let standard output and standard error replace what their encoding lacks, such as with `PYTHONIOENCODING=ascii`.

    A stream that is closed, as with `2>&-`, swallows what is printed. `print` would print to standard output instead.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN_TEXT)


def print_tsv(rows: Iterable[Sequence[Any]]) -> None:
    """Print tab-separated values without a header, for programs."""
    for row in rows:
        print("\t".join(printable(str(value)) for value in row))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], file: TextIO | None = None) -> None:
    """Print an aligned table with a header, for people."""
    file = file or sys.stdout
    if file.isatty():
        from ckpt_observe.cli import drawing  # noqa: PLC0415 (rich takes longer to import than most commands to run)

        drawing.print_table(columns, rows, file)
    else:
        for line in table_lines(columns, rows):
            print(line, file=file)


def drop_empty_columns(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> tuple[list[Column], list[list[Any]]]:
    """Return columns and rows without the columns that are empty in each row: formats differ in what they record."""
    used = [index for index, column in enumerate(columns) if any(column.format(row[index]) for row in rows)]
    return [columns[index] for index in used], [[row[index] for index in used] for row in rows]


def table_lines(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table as plain text, the header first."""
    lines = [[column.header for column in columns]]
    lines += [[printable(column.format(value)) for column, value in zip(columns, row, strict=True)] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.align_right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar with the time left on standard error while the block runs. Call the returned function after each of `total` parts.

    Without a terminal whose cursor can move, nothing is shown: a log needs only the result.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda: None
        return
    from ckpt_observe.cli import drawing  # noqa: PLC0415

    with drawing.progress_bar(description, total) as advance:
        yield advance


@contextmanager
def live_table(columns: Sequence[Column]) -> Iterator[Callable[[Iterable[Sequence[Any]]], None]]:
    """Return a function that shows rows in place of those before. Without a terminal, it prints each table below the last one."""
    if not sys.stdout.isatty():
        yield lambda rows: print("\n".join(table_lines(columns, rows)), end="\n\n", flush=True)
        return
    from ckpt_observe.cli import drawing  # noqa: PLC0415

    with drawing.live_view(columns) as show:
        yield show


def print_error(message: object) -> None:
    """Print a message to standard error, so that standard output contains only the result. It may quote the name of a file."""
    for line in f"ckpt-observe: {message}".split("\n"):
        print(printable(line), file=sys.stderr)


def print_left_out(count: int, limit: int) -> None:
    """Say that `--limit` left something out, if it did: a list that ends in silence looks complete."""
    if count > limit:
        print_error(f"there are more than {limit}; --limit N lists more")


def until_output_ends(run: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """Let a command exit silently, with code 0, if the reader of its output stops reading, as in `... | head`.

    If the disk is full, say so.
    """

    @wraps(run)
    def wrapper(args: Namespace) -> int:
        try:
            code = run(args)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            return OK
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            _discard_output()
            print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
            return ERROR
        return code

    return wrapper


def _discard_output() -> None:
    """Let the flush at exit succeed: see docs.python.org/3/library/signal.html#note-on-sigpipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_result(path: Path, text: str) -> None:
    """Write a result to a file, readable only by this user, and print its path. ConfigError if it cannot be written."""
    try:
        with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another file with --out") from error
    print(path)


def is_pipe_closed() -> bool:
    """Return whether the reader of standard output has stopped reading. For commands that may have nothing to print for long."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):  # not on this system, or not a file
        return False
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))
