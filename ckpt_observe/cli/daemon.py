"""`ckpt-observe daemon`: delivers the records of every process of a state directory, in the foreground, until SIGTERM or SIGINT.

Processes with `CKPT_OBSERVE_DRAIN=agent` deliver nothing themselves: they have no sink and no socket. The agent's own exporters say where
their spans and metrics go. It also takes what dead processes of any kind left.
"""

from __future__ import annotations

import logging
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from typing import Any, Final

from ckpt_observe import config, destinations, draining
from ckpt_observe.cli.health import HealthServer
from ckpt_observe.cli.output import OK, about
from ckpt_observe.cli.stopping import Stop
from ckpt_observe.delivery import agent
from ckpt_observe.delivery.exporter_worker import identity
from ckpt_observe.delivery.readiness import Readiness
from ckpt_observe.errors import ConfigError

logger = logging.getLogger("ckpt_observe")

LOOK_EVERY: Final = 0.2
STOP_WITHIN: Final = 10.0
"""Seconds that the end may take to deliver what is there; Kubernetes waits for 30."""


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "agent",
        help="deliver the records of all processes of this host",
        description=about(__doc__),
        epilog="Exit codes: 0 stopped by a signal, 1 the directory has an agent already, 2 wrong settings.",
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
    settings = config.read(dir=args.dir, exporters=args.exporters, drain="agent")
    if not settings.exporters:
        raise ConfigError("CKPT_OBSERVE_EXPORTERS: an agent without exporters would deliver nothing; name one, such as local")
    lock = agent.hold(settings.dir)
    sinks = destinations.sinks(settings)
    names = tuple(identity(sink) for sink in sinks)
    drain = draining.for_others(settings, sinks, lambda about: names if about.drain == "agent" else None)
    with HealthServer(args.health, Readiness(settings.dir, drain)):
        drain.start()
        draining.publish(sinks, drain.health)
        logger.info("ckpt_observe: draining %s to %s; health on %s:%d", settings.dir, ", ".join(sink.name for sink in sinks), *args.health)
        while not stop.wait(LOOK_EVERY):
            pass
        done = drain.close(STOP_WITHIN)
    lock.release()
    logger.info("ckpt_observe: stopped; %s", "all is delivered" if done else "what is not delivered waits on disk")
    return OK


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9465")
    return host.strip("[]"), int(port)
