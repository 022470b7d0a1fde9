"""Commands that write generated files: `--out DIR` writes them, `--check DIR` says which are not what would be written."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from ckpt_observe.cli.output import ERROR, OK, complain

EXIT_CODES: Final = "Exit codes: 0 done, or the files are those that would be written; 1 they are not, or cannot be written."


def add_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", type=Path, help="write the files")
    what.add_argument("--check", metavar="DIR", type=Path, help="write nothing, and say which files are not what would be written")


def write_or_check(args: Namespace, command: str, made: dict[str, bytes]) -> int:
    """Does what was asked with the files that the command made, by name; returns the exit code."""
    try:
        return _write(args.out, made) if args.out else _check(args.check, command, made)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}")
        return ERROR


def _write(directory: Path, made: dict[str, bytes]) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (directory / name).write_bytes(content)
        print(directory / name)
    return OK


def _check(directory: Path, command: str, made: dict[str, bytes]) -> int:
    there = {name: (directory / name).read_bytes() for name in made if (directory / name).exists()}
    stale = [name for name, content in made.items() if there.get(name) != content]
    for name in stale:
        complain(f"{directory / name} is not what would be written: run `ckpt-observe {command} --out {directory}` with the same options")
    return ERROR if stale else OK
