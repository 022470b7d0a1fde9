"""`ckpt-observe daemon`: delivers the records of every process of a state directory, in the foreground, until SIGTERM or SIGINT.

Processes with `CKPT_OBSERVE_DELIVERY=daemon` deliver nothing themselves: they have no exporter and no socket. The daemon's own exporters
say where their spans and metrics go. It also takes what dead processes of any kind left.
"""

from __future__ import annotations

import logging
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from typing import Any, Final

from ckpt_observe import config, wiring
from ckpt_observe.cli.health import HealthServer
from ckpt_observe.cli.output import OK, about
from ckpt_observe.cli.stopping import Stop
from ckpt_observe.delivery import daemon
from ckpt_observe.delivery.readiness import Readiness
from ckpt_observe.errors import ConfigError

logger = logging.getLogger("ckpt_observe")

LOOK_EVERY: Final = 0.2
STOP_WITHIN: Final = 10.0
"""Seconds that the end may take to deliver what is there; Kubernetes waits for 30."""


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "daemon",
        help="deliver the records of all processes of this host",
        description=about(__doc__),
        epilog="Exit codes: 0 stopped by a signal, 1 the directory has a daemon already, 2 wrong settings.",
    )
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("--exporters", metavar="LIST", help="where spans go (default $CKPT_OBSERVE_EXPORTERS)")
    health = "where /healthz and /readyz are (default 127.0.0.1:9465)"
    parser.add_argument("--health", metavar="HOST:PORT", type=_address, default="127.0.0.1:9465", help=health)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    stop = Stop()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    settings = config.read(dir=args.dir, exporters=args.exporters, delivery="daemon")
    if not settings.exporters:
        raise ConfigError("CKPT_OBSERVE_EXPORTERS: a daemon without exporters would deliver nothing; name one, such as local")
    lock = daemon.hold(settings.dir)
    exporters = wiring.build_exporters(settings)
    names = tuple(exporter.identity for exporter in exporters)
    delivery = wiring.for_others(settings, exporters, lambda about: names if about.delivery == "daemon" else None)
    with HealthServer(args.health, Readiness(settings.dir, delivery)):
        delivery.start()
        wiring.publish(exporters, delivery.health)
        logger.info(
            "ckpt_observe: delivery %s to %s; health on %s:%d",
            settings.dir,
            ", ".join(exporter.name for exporter in exporters),
            *args.health,
        )
        while not stop.wait(LOOK_EVERY):
            pass
        done = delivery.close(STOP_WITHIN)
    lock.release()
    logger.info("ckpt_observe: stopped; %s", "all is delivered" if done else "what is not delivered waits on disk")
    return OK


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9465")
    return host.strip("[]"), int(port)
