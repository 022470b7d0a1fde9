"""Every file that we read back is damaged at random and read again: no exception, no signal, no hang, no wrong data, little memory."""

from __future__ import annotations

import gzip
import mmap
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from ckpt_observe.core import json_lines, steps
from ckpt_observe.core.format import container
from ckpt_observe.core.serializers import keyed_format
from ckpt_observe.core.stores import jsonl
from ckpt_observe.core.stores import sqlite as sqlite_store
from ckpt_observe.delivery import assemble, save_index
from ckpt_observe.delivery.save_index import SaveIndex
from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal import cursors, page_reader, spool
from ckpt_observe.metricstore import metric_store
from ckpt_observe.support import files
from ckpt_observe.tracestore import database
from ckpt_observe.tracestore import reader as trace_reader
from ckpt_observe.tracestore import writer as trace_writer
from tests.faults.soak import journal_readers, store_readers
from tests.faults.soak.journal_readers import Read
from tests.faults.soak.trial import Findings, Trial

ROUND_SECONDS = 5.0
CONTROL_SECONDS = 300.0
"""Seconds that a control may take to meet its defect. It ends with the third detection, usually within a few seconds."""
MEMORY = 1 << 30
"""Bytes of address space that a reader may take in addition. A sparse file of 3 GiB that is read as a whole takes more."""
HANG_SECONDS = 60
"""Processor seconds for 100 executions at most."""
MAX_DEFECTS = 3
"""Defects after which a round ends."""


class Reader(NamedTuple):
    """A kind of file. `plant` makes its reader wrong on purpose, for the control."""

    name: str
    target: int
    prepare: Callable[[Path], Read]
    plant: Callable[[], None]


def run(reader: Reader, rng: random.Random, directory: Path, seconds: float = ROUND_SECONDS) -> Findings:
    """Damage and read for some seconds, in a child that may crash."""
    seed, shared = f"{rng.random()}", mmap.mmap(-1, mmap.PAGESIZE)
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(receiver)
            findings = _fuzz(reader, seed, directory, seconds, memoryview(shared).cast("Q"))
            os.write(sender, msgspec.json.encode(findings))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        data = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if data:
        return msgspec.json.decode(data, type=Findings)
    assert code <= 0, "the rig failed"
    executions = memoryview(shared).cast("Q")[0]
    findings = Findings(faults=executions)
    findings.record("signals", 1, f"{reader.name}, seed {seed}, execution {executions}: exit code {code}")
    return findings


def _fuzz(reader: Reader, seed: str, directory: Path, seconds: float, progress: memoryview) -> Findings:
    findings, rng = Findings(), random.Random(seed)
    read = reader.prepare(directory)
    _limit_memory()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and findings.defects < MAX_DEFECTS:
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)  # its signal kills the process: a hang is reported as a signal
        for _ in range(100):
            progress[0] += 1
            try:
                problem = read(rng)
            except Exception:
                findings.record("exceptions", 1, f"{reader.name}, seed {seed}, execution {progress[0]}: {traceback.format_exc(limit=-4)}")
            else:
                findings.record("wrong", bool(problem), f"{reader.name}, seed {seed}, execution {progress[0]}: {problem}")
            if time.monotonic() >= deadline or findings.defects >= MAX_DEFECTS:
                break
    findings.faults = progress[0]
    return findings


def _limit_memory() -> None:
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def control(reader: Reader, rng: random.Random, directory: Path) -> Findings:
    reader.plant()
    return run(reader, rng, directory, seconds=CONTROL_SECONDS)


# Defects on purpose


class NeverRaisedError(Exception):
    pass


def forget(module: ModuleType, *error_names: str) -> Callable[[], None]:
    """Return a function that makes a module not catch some exceptions of Python: their names in it stand for another one."""
    return lambda: [setattr(module, name, NeverRaisedError) for name in error_names]


def replace(owner: Any, name: str, replacement: Any) -> None:
    """Replace a function or value for good. Raises if there is none: it may have moved, and the control would have no defect."""
    mock.patch.object(owner, name, replacement).start()


def ignore_checksums() -> None:
    replace(spool, "_parse", lambda data: ([line[9:] for line in data.split(b"\n") if line], 0))


def ignore_digests() -> None:
    replace(steps, "validate", lambda stored, _task, _id: container.split(stored))


def trust_pages() -> None:
    page_reader.LINE_TYPES.update(dict.fromkeys(page_reader.LINE_TYPES, Any))


def trust_series() -> None:
    replace(metric_store, "_DAMAGED", (NeverRaisedError,))


def raise_sqlite_errors() -> None:
    replace(sqlite_store, "_RAISED", (NeverRaisedError,))
    for module in (database, trace_reader, trace_writer):
        replace(module, "translate_errors", nullcontext)


def raise_index_errors() -> None:
    def run(self: SaveIndex, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        with closing(save_index._open(self._path)) as connection:
            return connection.execute(statement, parameters).fetchall()

    replace(SaveIndex, "run", run)


def raise_zlib_errors() -> None:
    replace(jsonl, "_decompress", gzip.decompress)


def expect_json_errors_only() -> None:
    """An earlier defect: invalid UTF-8 is a ValueError, and not an error of msgspec."""

    def read_json(path: str, kind: Any, limit: int = 1 << 20) -> Any:
        try:
            return msgspec.json.decode(files.read_file(path, limit), type=kind)
        except msgspec.MsgspecError as error:
            raise DamagedFileError(22, str(error), path) from error

    for module in (files, cursors):
        replace(module, "read_json", read_json)


READERS = [
    Reader("spool", 150_000, journal_readers.prepare_spool, ignore_checksums),
    Reader("record", 400_000, journal_readers.prepare_record, forget(assemble, "LookupError", "TypeError")),
    Reader("pages", 60_000, journal_readers.prepare_pages, forget(page_reader, "LookupError", "TypeError", "ValueError")),
    Reader("recovery of pages", 20_000, journal_readers.prepare_recovery, trust_pages),
    Reader("about.json", 300_000, journal_readers.prepare_about, expect_json_errors_only),
    Reader("cursors.json", 60_000, journal_readers.prepare_cursors, expect_json_errors_only),
    Reader("counts.json", 150_000, journal_readers.prepare_counts, expect_json_errors_only),
    Reader("set-aside.json", 150_000, journal_readers.prepare_set_aside, expect_json_errors_only),
    Reader("sending.json", 100_000, journal_readers.prepare_send_marks, expect_json_errors_only),
    Reader("checkpoint", 600_000, store_readers.prepare_container, ignore_digests),
    Reader("forged checkpoint", 60_000, store_readers.prepare_forgery, forget(keyed_format, "_DECODE_ERRORS")),
    Reader("file store", 30_000, store_readers.prepare_file_store, ignore_digests),
    Reader("jsonl store", 30_000, store_readers.prepare_jsonl_store, ignore_digests),
    Reader("jsonl store with gzip", 30_000, store_readers.prepare_gzip_store, raise_zlib_errors),
    Reader("JSON Lines", 150_000, store_readers.prepare_json_lines, forget(json_lines, "ValueError", "EOFError")),
    Reader("SQLite store", 10_000, store_readers.prepare_sqlite_store, raise_sqlite_errors),
    Reader("trace store", 10_000, store_readers.prepare_trace_store, raise_sqlite_errors),
    Reader("metric store", 10_000, store_readers.prepare_metric_store, trust_series),
    Reader("save index", 10_000, store_readers.prepare_save_index, raise_index_errors),
    Reader("state directory", 2_000, journal_readers.prepare_state_directory, expect_json_errors_only),
]
TRIALS = [Trial("fuzz", reader.name, "faults", reader.target, partial(run, reader), partial(control, reader)) for reader in READERS]
