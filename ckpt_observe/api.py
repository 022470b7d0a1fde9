"""Where all rooms meet: `observe()` reads the settings, patches the libraries, and starts journal and delivery at the first operation."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ckpt_observe import config, samplers
from ckpt_observe.config import Settings
from ckpt_observe.instrument import registry
from ckpt_observe.instrument.instrumentor import Instrumentor, TargetReport
from ckpt_observe.record.guard import fault
from ckpt_observe.record.recorder import Page, recorder
from ckpt_observe.support import forks

if TYPE_CHECKING:  # made at the first operation, and imported only then: an import is paid by every program, a checkpoint by few
    from ckpt_observe.journal.journal import Journal
    from ckpt_observe.wiring import DeliveryHandle

EXIT_PATIENCE: Final = 2.0
"""Seconds that the end of a program may wait for exporters; what is not delivered by then is on disk for whoever comes next."""
FORK_PATIENCE: Final = 10.0
"""Seconds that a fork waits for a watch that another thread starts, which takes a tenth of one."""

_lock = threading.RLock()
"""Held while a watch is started or let go. Re-entrant: a signal handler may save a checkpoint while the first one starts us."""


class Watch:
    """What `observe()` returns: the observation of this process, until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._starting = self._closed = False
        self._journal: Journal | None = None
        self._delivery: DeliveryHandle | None = None
        self._environ = dict(os.environ) if settings.delivery == "companion" else {}
        """As it was when the settings were read: a companion gets what they came from, keys included."""
        self._instrumentors: list[Instrumentor] = []

    def _switch_on(self) -> None:
        self._instrumentors = registry.load(disabled=self.settings.disabled_instrumentations)
        for instrumentor in self._instrumentors:
            instrumentor.instrument()
        recorder.traceparent = self.settings.traceparent
        recorder.samples = self.settings.sampler.rule()
        recorder.take = self._first_page
        recorder.on = self.settings.sampler.name != samplers.NEVER  # of which nothing can come: as cheap as switched off
        if "prometheus" in self.settings.exporters and self.settings.delivery != "daemon":
            self._ready()  # a scraper must find what was before the restart, also while nothing is saved

    def _first_page(self) -> Page | None:
        """The first operation of this process, or of a forked child: only now is a journal made and a thread started."""
        with _lock:  # until it has its page: who closes us meanwhile sees that it runs
            journal = self._ready()
            return journal.take() if journal else None

    def _ready(self) -> Journal | None:
        with _lock:
            if self._journal is None and not self._starting and not self._closed:
                self._starting = True
                try:
                    self._start()
                except Exception as error:
                    recorder.take = lambda: None  # nowhere to keep it: the host goes on unobserved, and was told why
                    fault(error)
                finally:
                    self._starting = False
            return self._journal

    def _start(self) -> None:
        from ckpt_observe import wiring  # noqa: PLC0415

        self._journal, self._delivery = wiring.begin(self.settings, self._environ, self._replace)
        recorder.take = self._journal.take
        atexit.unregister(_flush_at_exit)  # to be the last registered, so the first at exit: before the user's provider shuts down
        atexit.register(_flush_at_exit)

    def _replace(self, delivery: DeliveryHandle, make: Callable[[], DeliveryHandle]) -> bool:
        """Another delivery in the place of this one, unless we are being closed."""
        with _lock:
            mine = self._delivery is delivery
            if mine:
                self._delivery = make()
            return mine

    def flush(self, timeout: float = 5.0) -> bool:
        """Bring everything recorded so far to every exporter; whether that was done in time. Never in a signal handler."""
        return self._delivery is None or self._delivery.flush(timeout)

    def close(self, timeout: float = EXIT_PATIENCE) -> bool:
        """Stop observing and put the patched libraries back; whether everything was delivered. What was not is kept on disk."""
        global _watch
        if _watch is self:
            recorder.on = False
        for instrumentor in self._instrumentors:
            instrumentor.uninstrument()
        with _lock:  # a first operation that is starting us has its page, and one that comes later none
            self._closed = True
            delivery, self._delivery, self._journal = self._delivery, None, None
            if _watch is self:
                recorder.take = lambda: None
                recorder.samples = None
                _watch = None
        return delivery is None or delivery.close(timeout)

    def report(self) -> list[TargetReport]:
        """Which callables are patched, and which are not and why."""
        return [row for instrumentor in self._instrumentors for row in instrumentor.report()]

    def _forked(self) -> None:
        """In a child: the journal is the parent's, and the threads are not here. The first operation makes our own."""
        self._starting = False
        forks.keep_alive(self._delivery)  # its exporters hold connections of the parent, and would close them
        journal, self._journal, self._delivery = self._journal, None, None
        if journal is not None:
            journal.close_after_fork()
            recorder.take = self._first_page


_watch: Watch | None = None
_observing = threading.Lock()


def observe(
    *,
    exporters: str | Sequence[str] | None = None,
    service: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    pages_dir: str | os.PathLike[str] | None = None,
    delivery: str | None = None,
    enabled: bool | None = None,
) -> Watch:
    """Observe every checkpoint operation of this process. Arguments go before the environment; a wrong one is a ConfigError.

    Called again, it observes with the new settings.
    """
    global _watch
    settings = config.read(exporters=exporters, service=service, dir=dir, pages_dir=pages_dir, delivery=delivery, enabled=enabled)
    with _observing:
        if _watch is not None:
            if _watch.settings == settings:
                return _watch
            _watch.close()
        watch = Watch(settings)
        if settings.enabled and settings.exporters:
            watch._switch_on()
            _watch = watch
        return watch


def adopt(settings: Settings, timeout: float = 10.0) -> int:
    """Deliver what dead processes left in the state directory; how many of their operations had been interrupted."""
    from ckpt_observe import wiring  # noqa: PLC0415
    from ckpt_observe.delivery.delivery import Delivery  # noqa: PLC0415
    from ckpt_observe.delivery.genai_events import lifecycle  # noqa: PLC0415

    lifecycle.on = settings.genai_events
    delivery = Delivery(settings.dir, wiring.build_exporters(settings), limit=settings.disk_limit)
    delivery.start()
    delivery.close(timeout)
    return delivery.interrupted


def _patience(watch: Watch) -> float:
    """Half of it, for there are two such moments; none where another process delivers and outlives us: not a container's first."""
    delivery = watch.settings.delivery
    return EXIT_PATIENCE / 2 if delivery == "in-process" or (delivery == "companion" and os.getpid() == 1) else 0.0


def _flush_at_exit() -> None:
    if _watch is not None:
        _watch.flush(_patience(_watch))


@atexit.register
def _at_exit() -> None:
    """Registered at the import, so it runs late: what the host saves at its own exit is recorded, too."""
    if _watch is not None:
        _watch.close(_patience(_watch))


# A fork waits for whoever starts us: a module that is being imported by another thread stays locked in the child, for ever.
_fork = threading.local()


def _before_fork() -> None:
    _fork.settled = _lock.acquire(timeout=FORK_PATIENCE)


def _after_fork() -> None:
    if _fork.settled:
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock, _observing
    _lock, _observing = threading.RLock(), threading.Lock()
    if _watch is not None:
        _watch._forked()
        if not _fork.settled:
            recorder.take = lambda: None  # better unobserved than waiting for ever


forks.run_in_parent(_before_fork, _after_fork)
forks.run_in_child(_after_fork_in_child, forks.Order.PROGRAM)
