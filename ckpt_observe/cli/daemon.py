"""`ckpt-observe daemon`: delivers for the programs of a state directory that use the delivery mode `daemon`, until SIGTERM or SIGINT.

Programs with `CKPT_OBSERVE_DELIVERY=daemon` deliver nothing themselves: they have no exporter and no socket. The exporters of the daemon
decide where their spans and metrics go. The daemon also delivers the records of dead processes, whatever their delivery mode was.
"""

from __future__ import annotations

import logging
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from typing import Any, Final

from ckpt_observe import config, wiring
from ckpt_observe.cli.commands import command_description
from ckpt_observe.cli.exit_codes import OK
from ckpt_observe.cli.health import HealthServer, Readiness
from ckpt_observe.cli.stopping import StopSignal
from ckpt_observe.delivery.daemon import acquire_daemon_lock
from ckpt_observe.errors import ConfigError
from ckpt_observe.support.logs import logger

POLL_INTERVAL: Final = 0.2
STOP_TIMEOUT: Final = 10.0
"""Seconds to deliver the rest after a signal. Kubernetes waits 30 s."""


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "daemon",
        description=command_description(__doc__),
        epilog="Exit codes: 0 stopped by a signal, 1 the state directory already has a daemon, 2 wrong settings.",
    )
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("--exporters", metavar="LIST", help="comma-separated exporters (default $CKPT_OBSERVE_EXPORTERS)")
    health = "address of /healthz and /readyz (default 127.0.0.1:9465)"
    parser.add_argument("--health", metavar="HOST:PORT", type=_address, default="127.0.0.1:9465", help=health)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    """Deliver until a signal arrives. Return the exit code."""
    stop = StopSignal()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    settings = config.read(dir=args.dir, exporters=args.exporters, delivery="daemon")
    if not settings.exporters:
        raise ConfigError("CKPT_OBSERVE_EXPORTERS: the daemon has no exporter and would deliver nothing; name at least one, such as local")
    lock = acquire_daemon_lock(settings.dir)
    delivery = wiring.build_daemon_delivery(settings)
    with HealthServer(args.health, Readiness(settings.dir, delivery)):
        wiring.start(delivery)
        names = ", ".join(worker.name for worker in delivery.workers)
        logger.info("Delivering the records in %s to %s. Health checks on %s:%d.", settings.dir, names, *args.health)
        while not stop.wait(POLL_INTERVAL):
            pass
        is_delivered = delivery.close(STOP_TIMEOUT)
    lock.release()
    logger.info("Stopped. %s", "All records are delivered." if is_delivered else "Records that are not delivered are kept on disk.")
    return OK


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9465")
    return host.strip("[]"), int(port)
