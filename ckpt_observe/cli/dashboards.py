"""`ckpt-observe dashboards`: the Grafana boards as JSON files, ready to be provisioned or imported."""

from __future__ import annotations

import json
from argparse import Namespace, _SubParsersAction
from pathlib import Path
from typing import Any

from ckpt_observe.cli.output import ERROR, OK, about, complain, until_pipe_closes
from ckpt_observe.dashboards import boards


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "dashboards",
        help="write the Grafana boards",
        description=about(__doc__),
        epilog="Exit codes: 0 done, or the files are those that would be written; 1 they are not, or cannot be written.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", type=Path, help="write a file for each board")
    what.add_argument("--check", metavar="DIR", type=Path, help="write nothing, and say which files are not what would be written")
    parser.add_argument("--traces", choices=("jaeger", "tempo"), default="jaeger", help="where traces are looked up (default jaeger)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    made = {name: json.dumps(board, indent=2, ensure_ascii=False).encode() + b"\n" for name, board in boards(args.traces).items()}
    try:
        return _write(args.out, made) if args.out else _check(args.check, made)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}")
        return ERROR


def _write(directory: Path, made: dict[str, bytes]) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (directory / name).write_bytes(content)
        print(directory / name)
    return OK


def _check(directory: Path, made: dict[str, bytes]) -> int:
    there = {name: (directory / name).read_bytes() for name in made if (directory / name).exists()}
    stale = [name for name, content in made.items() if there.get(name) != content]
    for name in stale:
        complain(f"{directory / name} is not what would be written: run `ckpt-observe dashboards --out {directory}` with the same options")
    return ERROR if stale else OK
