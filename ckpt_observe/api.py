"""`observe()`: reads the settings and patches the libraries. The journal and delivery start with the first operation.

With the exporter `prometheus` they start at once, unless a daemon delivers: metrics from before a restart must be available.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ckpt_observe import config, environment, samplers
from ckpt_observe.config import Settings
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.instrument import registry
from ckpt_observe.record.guard import faults, record_fault
from ckpt_observe.record.recorder import Page, recorder
from ckpt_observe.semconv import events
from ckpt_observe.support import forks, interpreters
from ckpt_observe.support.host_exceptions import keep_interrupt_status, raise_host_exception
from ckpt_observe.support.logs import WarningLog, warn

if TYPE_CHECKING:  # imported at the first operation: every program pays for an import, but few save checkpoints
    from ckpt_observe.instrument.targets import TargetReport
    from ckpt_observe.record.trace_context import Parent
    from ckpt_observe.wiring import DeliveryHandle, JournalHandle

EXIT_TIMEOUT: Final = 2.0
"""Seconds that the exit of a program may wait for exporters. The next process delivers what is left on disk."""
FORK_TIMEOUT: Final = 10.0
"""Seconds that a fork waits at most while another thread starts the journal (about 0.1 s). After that, the child records nothing."""

FIRST_PAUSE: Final = 1.0
"""Seconds after a failed attempt to start the journal or its delivery before the next operation tries again. The pause doubles."""
LONGEST_PAUSE: Final = 60.0

_lock = threading.RLock()
"""Held while a watch starts or closes. Re-entrant: a signal handler may save a checkpoint while the first one starts the journal."""


class Watch:
    """The observation of this process, returned by `observe()`. It ends with `close()` or with the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._starting = self._started = self._closed = False
        self._journal: JournalHandle | None = None
        self._delivery: DeliveryHandle | None = None
        self._build_delivery: Callable[[], DeliveryHandle] | None = None
        self._pid = os.getpid()
        """The process that called `observe()`, and not a forked child."""
        self._pause = self._next_attempt = 0.0
        self._missed = 0
        """Operations that were not recorded, because the journal could not be created. The journal counts those before its creation."""
        self._has_missed = False
        """Whether an operation was not recorded since the last `flush()`."""
        self._warnings = WarningLog()
        self._environ = dict(os.environ) if settings.delivery == "companion" else {}
        """The environment from which the settings were read, keys included, for a companion. Empty in the other delivery modes."""
        self._instrumentors: list[registry.Observation] = []

    def flush(self, timeout: float = 5.0) -> bool:
        """Deliver everything recorded so far to every exporter. Must not be called from a signal handler.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            False on timeout, or if a server fails on some of the spans. What is not delivered is kept on disk and sent later.
            Also False if an operation was not recorded since the last call, because no journal could be created.

        """
        if self._next_attempt:  # a failed start is tried again now
            self._next_attempt = 0.0
            self._ensure_journal()
        has_missed, self._has_missed = self._has_missed, False
        return (self._delivery is None or self._delivery.flush(timeout)) and not has_missed

    def close(self, timeout: float = EXIT_TIMEOUT) -> bool:
        """Stop observing, restore the patched libraries, and deliver what was recorded.

        Args:
            timeout: Seconds to wait for delivery at most.

        Returns:
            Whether everything was delivered. What was not is kept on disk, and the next process delivers it.

        """
        global _watch, _closed_report
        if _watch is self:
            recorder.pause()
            _closed_report = self._prepare_exit_report() if environment.RUN_PID in os.environ else None
        for instrumentor in self._instrumentors:
            try:
                instrumentor.uninstrument()
            except Exception as error:  # of another package: its error must not keep the records from being delivered
                record_fault(error)
        with _lock:  # a first operation that is starting the journal gets its page; a later one gets none
            self._closed = True
            delivery, self._delivery, self._journal = self._delivery, None, None
            if _watch is self:
                recorder.stop()
                _watch = None
        if self._missed:
            warn("%d checkpoint operations were not recorded.", self._missed)
        if delivery is None:
            return not self._missed
        from ckpt_observe import resource_detectors  # noqa: PLC0415 - loaded with the delivery

        # The rest of the time is for exporters: records in memory end with the process, and there may be no next one for the others.
        resource_detectors.shorten(timeout / 2)
        return delivery.close(timeout) and not self._missed

    def report(self) -> list[TargetReport]:
        """Return which callables are patched, and which are not and why."""
        return [row for instrumentor in self._instrumentors for row in instrumentor.report()]

    def _prepare_exit_report(self) -> Callable[[], None] | None:
        """Return a function that says what was recorded; None if that is of no interest. Called before `close` removes the patches.

        None in forked children: one line for each worker of a server would be too much.
        """
        if os.getpid() != self._pid:
            return None
        from ckpt_observe import exit_report  # noqa: PLC0415 - at exit, and not in every program
        from ckpt_observe.instrument.coverage import imported_libraries  # noqa: PLC0415

        try:
            recorded = self._journal.count_recorded() if self._journal is not None else 0
            is_of_interest = not recorded or exit_report.is_run_by_command()
            disabled = self.settings.disabled_instrumentations
            imported = imported_libraries(self._instrumentors, disabled) if is_of_interest else []
            return partial(exit_report.report_exit, self.settings, recorded, imported)
        except Exception as error:
            record_fault(error)
            return None

    def _start(self) -> None:
        """Patch the libraries and start recording."""
        selected = registry.create_all(self.settings.libraries, self.settings.disabled_instrumentations)
        self._instrumentors = [*selected, registry.create_for_processes()]
        for instrumentor in self._instrumentors:
            try:
                instrumentor.instrument()
            except Exception as error:  # of another package: its error must not reach the program that calls `observe()`
                record_fault(error)
        counted = events.NOTHING if self.settings.counts_unsampled else None
        unsampled = events.FAILURES if self.settings.unsampled_failures else counted
        if self.settings.sampler.name != samplers.NEVER or unsampled:  # else nothing would be recorded: stay as cheap as switched off
            recorder.start(
                self._first_page,
                samples=self.settings.sampler.rule(),
                unsampled=unsampled,
                process_parent=self._find_parent(),
                tensor_digests=self.settings.tensor_digests,
            )
        if "prometheus" in self.settings.exporters and self.settings.delivery != "daemon":
            self._ensure_journal()  # a scraper must find the metrics from before a restart, even while nothing is saved

    def _find_parent(self) -> Parent | None:
        """Return the span in which this process was started; None if there is none."""
        settings = self.settings
        if not (settings.traceparent or settings.laminar_context):
            return None
        from ckpt_observe.record.trace_context import find_process_parent  # noqa: PLC0415 - imports OpenTelemetry

        return find_process_parent(settings.traceparent, settings.laminar_context, settings.tracestate)

    def _first_page(self) -> Page | None:
        """Return a page for the first operation of this process or forked child, after creating the journal and starting delivery.

        None if that fails: the operation is not recorded, and a later one tries again.
        """
        with _lock:  # held until the operation has its page, so that a concurrent `close()` sees that it is running
            journal = self._ensure_journal()
            if journal is not None:
                return journal.take()
            if not self._closed:
                self._missed += 1
                self._has_missed = True
            return None

    def _ensure_journal(self) -> JournalHandle | None:
        """Create the journal and start its delivery, unless that is done or failed a short time ago."""
        with _lock:
            if not (self._started or self._starting or self._closed) and time.monotonic() >= self._next_attempt:
                self._starting = True
                try:
                    self._start_journal()
                except Exception as error:
                    raise_host_exception(error)
                    self._postpone_start(error)
                finally:
                    self._starting = False
            return self._journal

    def _start_journal(self) -> None:
        """Take the steps that are still to be taken. A delivery that cannot start does not keep the journal from recording."""
        from ckpt_observe import wiring  # noqa: PLC0415

        missed = self._missed
        if self._journal is None:
            self._journal, self._build_delivery = wiring.open_journal(self.settings, self._environ, self._replace_delivery, missed)
            self._missed -= missed  # now the journal counts them
            atexit.unregister(_flush_at_exit)  # registered last, it runs first: before the user's TracerProvider shuts down
            atexit.register(_flush_at_exit)
        if self._delivery is None and self._build_delivery is not None:
            self._delivery = self._build_delivery()
        if self._delivery is not None:
            self._delivery.start()
        recorder.use_pages(self._journal.take)
        self._started, self._next_attempt = True, 0.0
        if missed:
            warn("Checkpoints are observed from now on. %d operations before were not recorded.", missed)

    def _postpone_start(self, error: Exception) -> None:
        """Try again later: files, memory or threads may be available then."""
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._next_attempt = time.monotonic() + self._pause
        faults[f"{type(error).__name__} at start"] += 1
        trace = None if isinstance(error, CkptObserveError | OSError | RuntimeError) else error
        if self._journal is None:
            self._warnings.warn_once("start", "Checkpoints are not observed: %s. Trying again.", error, exc_info=trace)
        else:
            self._warnings.warn_once("start", "Checkpoints are recorded, but not delivered: %s. Trying again.", error, exc_info=trace)

    def _replace_delivery(self, delivery: DeliveryHandle, build: Callable[[], DeliveryHandle]) -> bool:
        """Replace `delivery` with the one that `build` returns, unless the watch was closed meanwhile. Return whether it was replaced."""
        with _lock:
            is_current = self._delivery is delivery
            if is_current:
                self._delivery = build()
            return is_current

    def _reset_after_fork(self) -> None:
        """In a child: the journal belongs to the parent, and its threads do not exist. The first operation creates a new journal."""
        self._starting = self._started = self._has_missed = False
        self._pause = self._next_attempt = 0.0
        self._missed, self._build_delivery = 0, None
        forks.keep_alive(self._delivery)  # its exporters hold connections of the parent, and would close them
        journal, self._journal, self._delivery = self._journal, None, None
        if journal is not None:
            journal.close_after_fork()
            recorder.use_pages(self._first_page)


def _is_supported() -> bool:
    """Return whether this process can be observed. Warn once if it cannot."""
    reason = config.WINDOWS if sys.platform == "win32" else "" if interpreters.is_main_interpreter() else interpreters.UNOBSERVED
    if reason:
        _warnings.warn_once("platform", "Checkpoints are not observed: %s", reason)
    return not reason


_warnings: Final = WarningLog()
_watch: Watch | None = None
_closed_report: Callable[[], None] | None = None
"""Of the last watch that was closed under `ckpt-observe run`, whose summary comes at the end of the program."""
_observe_lock = threading.Lock()


def observe(
    *,
    exporters: str | Sequence[str] | None = None,
    libraries: str | Sequence[str] | None = None,
    service: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    pages_dir: str | os.PathLike[str] | None = None,
    delivery: str | None = None,
    enabled: bool | None = None,
) -> Watch:
    """Observe every checkpoint operation of this process, from now on.

    An argument overrides its environment variable, with a warning; None means that it is not set. Options of `ckpt-observe run` override
    both. If called again with the same settings, the current watch is returned; with other settings, it is closed and a new one starts.

    Args:
        exporters: Exporters by name, or `none`; `+prometheus` adds one to those that are configured. `CKPT_OBSERVE_EXPORTERS`
        libraries: Libraries to observe, such as `default,+joblib,-langgraph`, or `none`. `CKPT_OBSERVE_LIBRARIES`
        service: The `service.name` of the spans. `OTEL_SERVICE_NAME`
        dir: State directory, for journals and the local store. `CKPT_OBSERVE_DIR`
        pages_dir: Directory for the pages of running operations, in shared memory. `CKPT_OBSERVE_PAGES_DIR`
        delivery: `in-process`, `companion` or `daemon`. `CKPT_OBSERVE_DELIVERY`
        enabled: False to do nothing at all. `CKPT_OBSERVE_ENABLED`. `OTEL_SDK_DISABLED=true` overrides both

    Raises:
        ConfigError: A setting is wrong. The message names it.

    Example:
        >>> watch = ckpt_observe.observe(exporters="local", service="trainer")
        >>> watch.flush()
        True

    """
    arguments: dict[str, Any] = {
        "exporters": exporters,
        "libraries": libraries,
        "service": service,
        "dir": dir,
        "pages_dir": pages_dir,
        "delivery": delivery,
        "enabled": enabled,
    }
    for name in os.environ.get(environment.RUN_OPTIONS, "").split(","):  # the person who runs the program has the last word
        if name in arguments:
            arguments[name] = None
    settings = config.read(**arguments)
    _warn_about_ignored_variables(settings)
    return _observe(settings)


def _warn_about_ignored_variables(settings: Settings) -> None:
    """Warn once about each variable that an argument of `observe()` overrides: nobody who sets one expects that."""
    for row in environment.VARIABLES:
        if row.argument and settings.origin.get(row.argument) == "argument" and os.environ.get(row.name):
            message = "%s is ignored, because the program calls observe(%s=...)"
            _warnings.warn_once(row.name, message, row.name, row.argument)
    if settings.origin.get("exporters") == "argument" and not settings.extends_default_exporters:
        for name, variable in config.configured_backends(os.environ).items():
            if name not in settings.exporters and not (name == "otlp" and "provider" in settings.exporters):
                message = (
                    "%s is ignored, because the program calls observe(exporters=...) without %s. Leave the argument out, or add %s to it."
                )
                _warnings.warn_once(variable, message, variable, name, name)


def observe_environment() -> Watch:
    """Observe this process with the settings of the environment. An exporter with a wrong setting is left out, with a warning.

    Raises:
        ConfigError: A setting that belongs to no exporter is wrong, or no exporter remains.

    """
    settings = config.read(lenient=True)
    for name, error in settings.unusable.items():
        _warnings.warn_once(name, "Exporter %s is not used: %s", name, error)
    return _observe(settings)


def _observe(settings: Settings) -> Watch:
    global _watch
    with _observe_lock:
        if _watch is not None:
            if _watch.settings == settings:
                return _watch
            _watch.close()
        watch = Watch(settings)
        if settings.enabled and settings.exporters and _is_supported():
            watch._start()
            _watch = watch
        return watch


def _exit_timeout(watch: Watch) -> float:
    """Return the seconds that exit waits for delivery: half of EXIT_TIMEOUT, because it waits twice.

    Zero if a daemon delivers, or a companion, unless we are PID 1 of a container, which ends together with its companion.
    """
    delivery = watch.settings.delivery
    return EXIT_TIMEOUT / 2 if delivery == "in-process" or (delivery == "companion" and os.getpid() == 1) else 0.0


def _flush_at_exit() -> None:
    if _watch is not None:
        _watch.flush(_exit_timeout(_watch))


@atexit.register
def _close_at_exit() -> None:
    """Close the watch. Registered at import, so it runs late: checkpoints that the program saves in its own exit handlers are recorded."""
    _report_exit()
    if _watch is not None:
        _watch.close(_exit_timeout(_watch))
        keep_interrupt_status()


def _report_exit() -> None:
    report = _closed_report if _watch is None else _watch._prepare_exit_report()
    if report is None:
        return
    try:
        report()
    except Exception as error:
        record_fault(error)


# A fork waits until the journal has started: a module that another thread is importing would stay locked in the child for ever.
_fork_state = threading.local()


def _before_fork() -> None:
    _fork_state.has_lock = _lock.acquire(timeout=FORK_TIMEOUT)


def _after_fork_in_parent() -> None:
    if _fork_state.has_lock:
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock, _observe_lock
    _lock, _observe_lock = threading.RLock(), threading.Lock()
    if _watch is not None:
        _watch._reset_after_fork()
        if not _fork_state.has_lock:
            recorder.discard()  # starting the journal could hang in the child: better not to record


forks.run_in_parent(_before_fork, _after_fork_in_parent)
forks.run_in_child(_after_fork_in_child, forks.Order.PROGRAM)
