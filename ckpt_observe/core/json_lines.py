"""Imports checkpoints that other tools wrote as JSON Lines. Whether a file is compressed with gzip is detected from its content."""

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

MAX_LINE = 256 * 1024 * 1024
"""Bytes. A longer line raises CompressionError: it is not a checkpoint, or a decompression bomb."""


def read_json_lines(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yield the value of each line of the file that is not empty. SerializationError if a line is not JSON."""
    with translate_os_errors(f"reading {path}"), open(path, "rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        lines: IO[bytes] = gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[assignment]
        number = 0
        try:
            while line := lines.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise CompressionError(f"line {number} of {path} has more than {MAX_LINE} bytes", code="compression.bomb")
                if line.strip():
                    yield _decode(line)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CompressionError(f"{path} is damaged after line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"line {number} of {path} is not JSON: {error}", code="serialization.malformed") from error


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)  # accepts NaN, which Python writes, and the byte order mark of Windows


def adopt(checkpointer: Checkpointer, task: str, path: str | os.PathLike[str]) -> CheckpointInfos:
    """Save every line of the file as a checkpoint of the task, in order, and return the headers.

    `step` and `status` of a line are also copied to the header if they are valid. After an error, the lines before it stay saved.
    """
    origin = os.fsencode(os.path.basename(path)).decode(errors="replace")
    infos = []
    for value in read_json_lines(path):
        fields = value if isinstance(value, dict) else {}
        step, status = fields.get("step"), fields.get("status")
        info = checkpointer.save(
            task,
            value,
            step=step if type(step) is int and -(2**63) <= step < 2**63 else None,
            status=status if isinstance(status, str) else "running",
            metadata={"adopted_from": origin},
        )
        infos.append(info)
    return infos
