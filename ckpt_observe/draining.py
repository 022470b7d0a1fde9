"""The journal of this process and who drains it: its own threads, a companion, or the agent of the host."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from ckpt_observe import __version__, destinations, environment
from ckpt_observe.config import Settings
from ckpt_observe.delivery.daemon import Agent
from ckpt_observe.delivery.companion import Companion
from ckpt_observe.delivery.adoption import Attends
from ckpt_observe.delivery.exporter_worker import Sink, identity
from ckpt_observe.delivery.delivery import Drain
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.disk_limit import Leftovers
from ckpt_observe.delivery.genai_events import lifecycle
from ckpt_observe.journal.counts import Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record import redact
from ckpt_observe.record.guard import faults
from ckpt_observe.semconv import metrics


class Draining(Protocol):
    """What `observe()` needs of it."""

    def flush(self, timeout: float = ..., /) -> bool: ...
    def close(self, timeout: float = ..., /) -> bool: ...


Replace: TypeAlias = Callable[[Draining, Callable[[], Draining]], bool]
"""Put what the function makes in the place of the first; whether that was done."""


def begin(settings: Settings, environ: Mapping[str, str], replace: Replace) -> tuple[Journal, Draining]:
    """At the first operation of a process."""
    lifecycle.on = settings.genai_events
    if settings.drain == "thread":
        sinks = destinations.sinks(settings)
        journal = _journal(settings, [identity(sink) for sink in sinks if sink.lasting])
        return journal, _in_threads(settings, sinks, journal)
    names = destinations.chosen(settings)
    leftovers = Leftovers(settings.dir, settings.disk_limit)
    if settings.drain == "agent":
        journal = _journal(settings, ())
        handover = Handover(journal, Agent(settings.dir, journal), leftovers, _faults, lambda: False)
    else:
        owed = destinations.owed(settings, names)
        journal = _journal(settings, owed)
        companion = Companion(settings.dir, companion_name(owed), _environ_of_companion(settings, names, environ))
        make = lambda: _in_threads(settings, destinations.sinks(settings, names), journal)  # noqa: E731
        handover = Handover(journal, companion, leftovers, _faults, lambda: journal.drain_here() and replace(handover, make))
    handover.start()
    return journal, handover


def _journal(settings: Settings, owed: Iterable[str]) -> Journal:
    return Journal(settings.dir, settings.ring_dir, tuple(owed), resource(settings), settings.drain)


def _in_threads(settings: Settings, sinks: list[Sink], journal: Journal) -> Drain:
    drain = Drain(settings.dir, sinks, journal, destinations.last_save(settings.dir), limit=settings.disk_limit)
    drain.start()
    publish(sinks, lambda: {**drain.health(), **_faults()})
    return drain


def for_others(settings: Settings, sinks: list[Sink], attends: Attends) -> Drain:
    """The drain of a companion or an agent, which is not started yet."""
    lifecycle.on = settings.genai_events
    return Drain(settings.dir, sinks, None, destinations.last_save(settings.dir), attends, settings.disk_limit)


def publish(sinks: Iterable[Sink], health: Callable[[], Counts]) -> None:
    """Start those that also publish, by themselves."""
    for start in [sink.start for sink in sinks if hasattr(sink, "start")]:
        start(health)


def _faults() -> Counts:
    return {(metrics.FAULTS.name, ()): float(sum(list(faults.values())))}


def companion_name(owed: Iterable[str]) -> str:
    """One for each set of destinations: a companion delivers only for processes that want what it has."""
    return hashlib.sha256("\n".join(sorted(owed)).encode()).hexdigest()[:12]


def _environ_of_companion(settings: Settings, names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings, where arguments may stand over the environment; and it is not to be observed itself, however Python is started."""
    return {
        **environ,
        environment.EXPORTERS: ",".join(names) or "none",
        environment.DIR: str(settings.dir),
        environment.SERVICE_NAME: settings.service,
        environment.DRAIN: "companion",
        environment.ENABLED: "false",
    }


def resource(settings: Settings) -> dict[str, Any]:
    """Who made the spans, in OpenTelemetry's names."""
    return {
        "service.name": settings.service,
        "service.instance.id": str(uuid.UUID(bytes=os.urandom(16), version=4)),
        "process.pid": os.getpid(),
        "host.name": socket.gethostname(),
        "telemetry.distro.name": "ckpt_observe",
        "telemetry.distro.version": __version__,
        **redact.attributes(settings.resource),
    }
