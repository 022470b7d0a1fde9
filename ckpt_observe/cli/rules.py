"""`ckpt-observe rules`: the alerts of a site, as files for Prometheus and Alertmanager, with the runbook they link to."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from pathlib import Path
from typing import Any, Final

from ckpt_observe.alerts.files import WEBHOOK, files
from ckpt_observe.alerts.plan import Plan, duration, seconds
from ckpt_observe.cli.output import ERROR, OK, about, complain, until_pipe_closes
from ckpt_observe.errors import ConfigError

_USUAL: Final = Plan()


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "rules",
        help="write alerts for Prometheus and Alertmanager, and their runbook",
        description=about(__doc__),
        epilog="Exit codes: 0 done, or the files are those that would be written; 1 they are not, or cannot be written.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", type=Path, help="write the files")
    what.add_argument("--check", metavar="DIR", type=Path, help="write nothing, and say which files are not what would be written")
    apart = f"time between two saves, the shortest where tasks differ (default {duration(_USUAL.interval)})"
    parser.add_argument("--interval", type=_seconds, default=_USUAL.interval, metavar="TIME", help=apart)
    parser.add_argument("--slo", type=float, default=_USUAL.slo, metavar="SHARE", help="share of saves to succeed (default %(default)s)")
    parser.add_argument("--batch", action="store_true", help="metrics are there only while a job runs: their absence is no alarm")
    parser.add_argument("--runbook", default=_USUAL.runbook, metavar="URL", help="where you keep the runbook (default %(default)s)")
    parser.add_argument("--webhook", default=WEBHOOK, metavar="URL", help="who gets the notifications (default %(default)s)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    texts = files(Plan(args.interval, args.slo, args.batch, args.runbook), args.webhook)
    made = {name: text.encode() for name, text in texts.items()}
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
        complain(f"{directory / name} is not what would be written: run `ckpt-observe rules --out {directory}` with the same options")
    return ERROR if stale else OK


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error
