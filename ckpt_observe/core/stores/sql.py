"""What the SQL stores share: one table, whose columns are an index over the headers.

The header is kept as it was written, so a listing checks its seal like any other reader; the columns only find it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.errors import CheckpointError

COLUMNS = "task, id, created, step, status, error_class, stored_size, header, payload"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def microseconds(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def row(info: CheckpointInfo, blob: Blob) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    header = blob.pieces[0]
    rest = blob.pieces[1:]
    payload = rest[0] if len(rest) == 1 else b"".join(rest)
    error = info.metadata.get("error")
    error_class = error.get("class") if isinstance(error, dict) else None
    return info.task, info.id, microseconds(info.created), info.step, info.status, error_class, info.stored_size, header, payload


def infos(headers: list[Buffer]) -> CheckpointInfos:
    """The headers that are not damaged."""
    found = []
    for header in headers:
        try:
            found.append(container.read_header(header))
        except CheckpointError:
            continue
    return found


def conditions(query: Query, mark: Callable[[], str]) -> tuple[str, list[Any]]:
    """The part of a query that the columns answer, as SQL with placeholders; what they cannot is asked of each header.

    No name or value of the query becomes SQL text.
    """
    wanted: list[tuple[str, Any]] = [
        ("task =", query.task),
        ("created >=", None if query.since is None else microseconds(query.since)),
        ("created <=", None if query.until is None else microseconds(query.until)),
        ("step >=", query.min_step),
        ("step <=", query.max_step),
        ("status =", query.status),
        ("error_class =", query.error_class),
        ("stored_size >=", query.min_size),
        ("stored_size <=", query.max_size),
    ]
    given = [(column, value) for column, value in wanted if value is not None]
    return " AND ".join(["true", *(f"{column} {mark()}" for column, _ in given)]), [value for _, value in given]


def columns_suffice(query: Query) -> bool:
    return not query.parameters and query.tag is None
