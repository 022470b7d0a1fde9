"""`ckpt-observe dashboards`: the Grafana dashboards as JSON files, ready to be provisioned or imported."""

from __future__ import annotations

import json
from argparse import Namespace, _SubParsersAction
from typing import Any

from ckpt_observe.cli import generated
from ckpt_observe.cli.output import about, until_pipe_closes
from ckpt_observe.dashboards import dashboards


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "dashboards",
        help="write the Grafana dashboards",
        description=about(__doc__),
        epilog=generated.EXIT_CODES,
    )
    generated.add_arguments(parser)
    parser.add_argument("--traces", choices=("jaeger", "tempo"), default="jaeger", help="where traces are looked up (default jaeger)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    made = {
        name: json.dumps(dashboard, indent=2, ensure_ascii=False).encode() + b"\n" for name, dashboard in dashboards(args.traces).items()
    }
    return generated.write_or_check(args, "dashboards", made)
