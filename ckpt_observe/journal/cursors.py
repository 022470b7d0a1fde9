"""The file with the cursors of one journal: until where each exporter has received the spool. Written by the process that delivers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal import spool
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.support.files import read_json, replace_file, set_aside
from ckpt_observe.support.host_exceptions import raise_host_exception

FILE: Final = "cursors.json"
_Position: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_StoredCursors: TypeAlias = dict[str, tuple[_Position, _Position]]


def read_cursors(directory: str, *, quarantine: bool = False) -> dict[str, Cursor]:
    """Return the stored cursors. Those that are missing or damaged start at the beginning: delivering twice does no damage.

    `quarantine`: move a damaged file aside. Only for the process that delivers.
    """
    path = os.path.join(directory, FILE)
    try:
        stored: dict[str, tuple[int, int]] = read_json(path, _StoredCursors)
        cursors = {exporter: Cursor(*position) for exporter, position in stored.items()}
        return {exporter: cursor for exporter, cursor in cursors.items() if spool.is_boundary(directory, cursor)}
    except DamagedFileError:
        if quarantine:
            set_aside(path)
    except OSError as error:  # none yet
        raise_host_exception(error)
    return {}


def write_cursors(directory: str, cursors: Mapping[str, Cursor]) -> None:
    """Store the cursors. OSError if the disk is full or gone."""
    replace_file(os.path.join(directory, FILE), msgspec.json.encode(cursors), sync=False)
