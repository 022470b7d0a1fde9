"""What other tools wrote: JSON Lines, plain or gzip, told apart by their content."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfos
from ckpt_observe.errors import CompressionError, SerializationError
from ckpt_observe.support.errnos import translate_os_errors

LONGEST_LINE = 256 * 1024 * 1024
"""A line longer than this is no checkpoint, or a bomb."""


def read_json_lines(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The value on each line that is not empty."""
    with translate_os_errors(f"reading {path}"), open(path, "rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        lines: IO[bytes] = gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[assignment]
        number = 0
        try:
            while line := lines.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise CompressionError(f"line {number} of {path} has more than {LONGEST_LINE} bytes", code="compression.bomb")
                if line.strip():
                    yield _value(line)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CompressionError(f"{path} is damaged after line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"line {number} of {path} is not JSON: {error}", code="serialization.malformed") from error


def _value(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)  # NaN, which Python writes, and the mark that Windows puts before the first line


def adopt(checkpointer: Checkpointer, task: str, path: str | os.PathLike[str]) -> CheckpointInfos:
    """Save every line of a foreign file as a checkpoint of the task, in order; an error leaves those of the lines before it.

    `step` and `status` are taken where a line has them and they can be ones; in the state they are in any case.
    """
    origin = os.fsencode(os.path.basename(path)).decode(errors="replace")
    saved = []
    for value in read_json_lines(path):
        facts = value if isinstance(value, dict) else {}
        step, status = facts.get("step"), facts.get("status")
        info = checkpointer.save(
            task,
            value,
            step=step if type(step) is int and -(2**63) <= step < 2**63 else None,
            status=status if isinstance(status, str) else "running",
            metadata={"adopted_from": origin},
        )
        saved.append(info)
    return saved
