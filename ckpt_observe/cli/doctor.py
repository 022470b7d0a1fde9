"""`ckpt-observe doctor`: effective settings and where each came from, each place tried for real, what is patched, what waits."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from argparse import Namespace, _SubParsersAction
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ckpt_observe import config
from ckpt_observe.cli.output import OK, Column, print_table, until_pipe_closes
from ckpt_observe.config import Settings
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.instrument import registry
from ckpt_observe.journal import recovery, spool
from ckpt_observe.journal.journal import JOURNALS
from ckpt_observe.journal.locks import Lock
from ckpt_observe.journal.place import file_system, page_directory, private_directory
from ckpt_observe.tracestore import FILENAME, TraceReader

PROBLEMS: Final = 3
_PACKAGES: Final = ("ckpt-observe", "opentelemetry-api", "opentelemetry-sdk", "wrapt", "msgspec", "lmnr")


class Finding(NamedTuple):
    """One line of the report."""

    state: str
    subject: str
    detail: str


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check settings, directories, journals and patches",
        description=__doc__,
        epilog="Exit codes: 0 all is well, 3 problems found.",
    )
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    findings = list(_findings(args.dir))
    print_table((Column("STATE"), Column("WHAT"), Column("DETAIL")), findings)
    return PROBLEMS if any(finding.state == "problem" for finding in findings) else OK


def _findings(directory: str | None) -> Iterator[Finding]:
    versions = ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name)))
    yield Finding("ok", "versions", f"Python {platform.python_version()}, {versions}")
    try:
        settings = config.read(dir=directory)
    except CkptObserveError as error:
        yield Finding("problem", "settings", str(error))
        return
    for name, origin in settings.origin.items():
        value = getattr(settings, name, None)
        if value is not None:
            shown = ", ".join(value) if isinstance(value, tuple) else value
            yield Finding("ok", f"setting {name}", f"{shown} (from {origin})")
    if not settings.enabled:
        yield Finding("note", "enabled", f"observation is switched off by {settings.origin['enabled']}")
    yield from _tried("state directory", lambda: _state(settings.dir))
    yield from _tried("pages", lambda: _pages(settings))
    yield from _tried("trace store", lambda: _store(settings.dir))
    yield from _journals(settings.dir / JOURNALS)
    yield from _patches()


def _tried(subject: str, attempt: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield Finding("ok", subject, attempt())
    except (CkptObserveError, OSError) as error:
        yield Finding("problem", subject, str(error))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _state(directory: Path) -> str:
    private_directory(directory)
    probe = directory / f"probe-{os.getpid()}"
    probe.write_bytes(b"x")
    probe.unlink()
    free = os.statvfs(directory)
    return f"{directory} can be written, {free.f_bavail * free.f_frsize >> 20} MiB free"


def _pages(settings: Settings) -> str:
    directory, mapped = page_directory(settings.dir, settings.ring_dir)
    how = "mapped" if mapped else "written with pwrite: slower, because a map on this file system could kill the program"
    return f"{directory} on {file_system(directory) or sys.platform}, {how}"


def _store(directory: Path) -> str:
    path = directory / FILENAME
    if not path.exists():
        return f"{path} is made with the first trace"
    with TraceReader(path) as reader:
        newest = reader.newest(1)
    return f"{path}, {path.stat().st_size >> 10} KiB" + ("" if newest else ", empty")


def _journals(root: Path) -> Iterator[Finding]:
    live = dead = waiting = 0
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        try:
            recovery.read_about(str(entry))
            waiting += spool.size(str(entry))
            lock = Lock.take(str(entry / "owner.lock"), create=False)
        except (CkptObserveError, OSError) as error:
            yield Finding("problem", "journal", str(error))
            continue
        live, dead = (live + 1, dead) if lock is None else (live, dead + 1)
        if lock is not None:
            lock.release()
    counted = f"{live} of live processes, {dead} left by dead ones, {waiting >> 10} KiB in spools"
    yield Finding("note" if dead else "ok", "journals", counted)


def _patches() -> Iterator[Finding]:
    for instrumentor in registry.load():
        __import__(instrumentor.library)
        instrumentor.instrument()
        rows = instrumentor.report()
        instrumentor.uninstrument()
        bad = [row for row in rows if row.state != "patched"]
        yield Finding("ok", f"patches {instrumentor.name}", f"{len(rows) - len(bad)} of {len(rows)} callables can be patched")
        for row in bad:
            yield Finding("problem", row.target, row.detail)
