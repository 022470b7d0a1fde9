"""What only a terminal can show: tables that fit its width, a bar with the time left, a view that is redrawn. The only importer of rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ckpt_observe.cli.output import Column
from ckpt_observe.support.formatting import printable, wants_colour

Rows = Iterable[Sequence[Any]]
_GAP: Final = 2
"""Spaces between columns."""
_NARROW: Final = 10
"""A column of names keeps this width before IDs are broken, too."""


def console(file: TextIO) -> Console:
    """Return the console of a stream: with colours if `wants_colour`. Nothing in a text is markup, and no text is changed."""
    return Console(
        file=file, color_system="auto" if wants_colour(file) else None, markup=False, emoji=False, highlight=False, soft_wrap=False
    )


def print_table(columns: Sequence[Column], rows: Rows, file: TextIO) -> None:
    """Print a table that fits the terminal."""
    terminal = console(file)
    terminal.print(table(columns, rows, terminal.width))


def table(columns: Sequence[Column], rows: Rows, width: int) -> Table:
    """Return a table that fits the width. Cells are folded and never shortened: a shortened ID would be useless."""
    cells = [[_cell(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, fixed_width in zip(columns, _fixed_widths(columns, cells, width), strict=True):
        justify: JustifyMethod = "right" if column.align_right else "left"
        drawn.add_column(column.header, justify=justify, overflow="fold", width=fixed_width)
    for row in cells:
        drawn.add_row(*row)
    return drawn


def _fixed_widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int) -> Sequence[int | None]:
    """Return the width of each column whose values stay whole, and None for those that may be folded anywhere.

    If the terminal is too narrow, names and sentences are folded first, then times between their words, then IDs, and numbers last.
    """
    values = [[row[index].plain for row in cells] for index in range(len(columns))]
    natural = [_longest([column.header, *texts]) for column, texts in zip(columns, values, strict=True)]
    available = width - _GAP * (len(columns) - 1)
    if sum(natural) <= available:
        return [None] * len(columns)
    lines = [_longest([*column.header.split(), *texts]) for column, texts in zip(columns, values, strict=True)]
    words = [_longest(" ".join([column.header, *texts]).split()) for column, texts in zip(columns, values, strict=True)]
    indices = range(len(columns))
    numbers = [lines[index] if columns[index].align_right else None for index in indices]
    for fixed, narrowest in (
        ([lines[index] if columns[index].whole else numbers[index] for index in indices], _NARROW),
        ([words[index] if columns[index].whole else numbers[index] for index in indices], _NARROW),
        ([words[index] if columns[index].whole and words[index] < lines[index] else numbers[index] for index in indices], 4),
    ):
        needed = (min(text, narrowest) if width is None else width for width, text in zip(fixed, natural, strict=True))
        if sum(needed) <= available:
            return fixed
    return [None] * len(columns)


def _longest(texts: Iterable[str]) -> int:
    """Return the width of the longest text in cells of the terminal."""
    return max(map(cell_len, texts), default=0)


def _cell(column: Column, value: Any) -> Text:
    return Text(printable(column.format(value)), style=column.style(value) if column.style else "")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error; the returned function advances it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def live_view(columns: Sequence[Column]) -> Iterator[Callable[[Rows], None]]:
    """Return a function that redraws a table on standard output."""
    terminal = console(sys.stdout)
    with Live(table(columns, (), terminal.width), console=terminal, auto_refresh=False) as view:
        yield lambda rows: view.update(table(columns, rows, terminal.width), refresh=True)
