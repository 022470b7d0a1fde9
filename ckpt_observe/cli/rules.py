"""`ckpt-observe rules`: the alerts of a site, as files for Prometheus and Alertmanager, with the runbook they link to."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from typing import Any, Final

from ckpt_observe.alerts.files import WEBHOOK, files
from ckpt_observe.alerts.site import Site, format_duration, parse_duration
from ckpt_observe.cli import generated
from ckpt_observe.cli.output import about, until_pipe_closes
from ckpt_observe.errors import ConfigError

_USUAL: Final = Site()


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "rules",
        help="write alerts for Prometheus and Alertmanager, and their runbook",
        description=about(__doc__),
        epilog=generated.EXIT_CODES,
    )
    generated.add_arguments(parser)
    apart = f"time between two saves, the shortest where tasks differ (default {format_duration(_USUAL.interval)})"
    parser.add_argument("--interval", type=_seconds, default=_USUAL.interval, metavar="TIME", help=apart)
    parser.add_argument("--slo", type=float, default=_USUAL.slo, metavar="SHARE", help="share of saves to succeed (default %(default)s)")
    parser.add_argument("--batch", action="store_true", help="metrics are there only while a job runs: their absence is no alarm")
    parser.add_argument("--runbook", default=_USUAL.runbook, metavar="URL", help="where you keep the runbook (default %(default)s)")
    parser.add_argument("--webhook", default=WEBHOOK, metavar="URL", help="who gets the notifications (default %(default)s)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    texts = files(Site(args.interval, args.slo, args.batch, args.runbook), args.webhook)
    made = {name: text.encode() for name, text in texts.items()}
    return generated.write_or_check(args, "rules", made)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error
