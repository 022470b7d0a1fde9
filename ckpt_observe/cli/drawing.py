"""What only a terminal can show: tables that fit its width, a bar with the time left, a view that is redrawn. The only importer of rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ckpt_observe.cli.output import Column
from ckpt_observe.support.formatting import printable, wants_colour

Rows = Iterable[Sequence[Any]]


def console(file: TextIO) -> Console:
    """Return the console of a stream: with colours if `wants_colour`. Nothing in a text is markup, and no text is changed."""
    return Console(
        file=file, color_system="auto" if wants_colour(file) else None, markup=False, emoji=False, highlight=False, soft_wrap=False
    )


def table(columns: Sequence[Column], rows: Rows) -> Table:
    """Return a table whose cells are folded if the terminal is too narrow: a shortened id would be useless."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        drawn.add_column(column.header, justify="right" if column.align_right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
    return drawn


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
    with Live(table(columns, ()), console=console(sys.stdout), auto_refresh=False) as view:
        yield lambda rows: view.update(table(columns, rows), refresh=True)
