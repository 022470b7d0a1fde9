"""Runs the resource detectors of OpenTelemetry that `OTEL_EXPERIMENTAL_RESOURCE_DETECTORS` names.

Detectors are code of other packages, and may ask servers about the host or its cloud. So each runs in a thread of its own, and what it
finds later than TIMEOUT seconds is ignored. Neither the import of the package nor a checkpoint waits for them; delivery does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ckpt_observe.record import redact
from ckpt_observe.support import entry_points, forks
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import warn

GROUP: Final = "opentelemetry_resource_detector"
"""The entry point group in which packages announce detectors."""
TIMEOUT: Final = 5.0
"""Seconds for all detectors together, which run at the same time. OpenTelemetry's SDK gives each of them as many."""
FORK_TIMEOUT: Final = 1.0
"""Seconds that a fork waits at most while detectors are imported: a module that is being imported would stay locked in the child."""
_POLL_INTERVAL: Final = 0.1
"""Seconds between two looks at the time that detectors still have."""
ALL: Final = "*"
_ENVIRONMENT: Final = "otel"
"""The detector of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, which are settings of ours."""
Attributes: TypeAlias = dict[str, Any]


class Detection:
    """One run of detectors in this process. Their attributes are merged in the order of the names: the last one counts."""

    def __init__(self, names: Sequence[str], timeout: float = TIMEOUT) -> None:
        self._names, self._start = names, time.monotonic()
        self._deadline = self._start + timeout
        self.is_shortened = False
        """Whether `shorten` left less time than usual, so that another run may find more."""
        self.attributes: Attributes = {}
        """What the detectors found, without secrets; empty until they are done."""
        self._results: dict[str, Attributes] = {}
        self._importing: set[str] = set()
        self._imported = threading.Event()
        self._done = threading.Event()
        self._callbacks: list[Callable[[Attributes], None]] = []
        self._lock = threading.Lock()
        if not names:
            self._finish()

    @property
    def is_done(self) -> bool:
        """Whether all detectors have answered, failed or run out of time."""
        return self._done.is_set()

    def start(self) -> None:
        """Start the threads. If the system refuses one, the detectors are skipped."""
        try:
            _start_thread(self._run)
        except RuntimeError as error:
            raise_host_exception(error)
            warn("Resource detectors are not used: no thread can be started (%s).", error)
            self._finish()

    def wait(self) -> Attributes:
        """Return what the detectors found, when they are done. For threads of ours only."""
        self._done.wait(max(0.0, self._deadline + 1 - time.monotonic()))
        return self.attributes

    def shorten(self, seconds: float) -> None:
        """Give the detectors at most so many seconds from now on."""
        deadline = time.monotonic() + seconds
        if deadline < self._deadline and not self.is_done:
            self._deadline, self.is_shortened = deadline, True

    def when_done(self, callback: Callable[[Attributes], None]) -> None:
        """Call a function with what the detectors found: now, or later in another thread."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback(self.attributes)

    def wait_for_imports(self) -> None:
        """Wait until the detectors are imported, for at most FORK_TIMEOUT seconds."""
        self._imported.wait(max(0.0, min(FORK_TIMEOUT, self._deadline - time.monotonic())))

    def _run(self) -> None:
        try:
            self._names = _expand(self._names)
            self._importing.update(self._names)
            threads = [_start_thread(self._detect, name) for name in self._names]
            for thread in threads:
                while thread.is_alive() and (remaining := self._deadline - time.monotonic()) > 0:
                    thread.join(min(remaining, _POLL_INTERVAL))
            seconds = self._deadline - self._start
            for name in self._names:
                if name not in self._results:
                    warn("Resource detector %s did not answer within %.2g s. Spans are sent without its attributes.", name, seconds)
        except Exception as error:
            raise_host_exception(error)
            warn("Resource detectors cannot be run: %r. Spans are sent without their attributes.", error)
        self._finish()

    def _detect(self, name: str) -> None:
        from ckpt_observe.support.http_client import untraced  # noqa: PLC0415 - most programs have no detectors

        try:
            with untraced():
                try:
                    detector = entry_points.load(GROUP, name)
                finally:
                    self._importing.discard(name)
                    if not self._importing:
                        self._imported.set()
                self._results[name] = redact.attributes(detector().detect().attributes)
        except SystemExit as error:
            self._leave_out(name, error)
        except Exception as error:  # code of a third party
            raise_host_exception(error)
            self._leave_out(name, error)

    def _leave_out(self, name: str, error: BaseException) -> None:
        self._results[name] = {}
        warn("Resource detector %s failed: %r. Spans are sent without its attributes.", name, error)

    def _finish(self) -> None:
        with self._lock:
            for name in self._names:
                self.attributes.update(self._results.get(name, {}))
            self._imported.set()
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self.attributes)
            except Exception as error:
                raise_host_exception(error)
                warn("The attributes of resource detectors cannot be stored: %r", error)


def _start_thread(run: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=run, args=args, name="ckpt-observe-resource", daemon=True)
    thread.start()
    return thread


def _expand(names: Sequence[str]) -> list[str]:
    """Return the names, with those of all other installed detectors in the place of `*`."""
    if ALL not in names:
        return list(names)
    further_names = [name for name in entry_points.names(GROUP) if name not in (*names, _ENVIRONMENT)]
    index = names.index(ALL)
    return [*names[:index], *further_names, *names[index + 1 :]]


_detections: dict[tuple[str, ...], Detection] = {}
_lock = threading.Lock()


def detect(names: Sequence[str], *, renew: bool = False) -> Detection:
    """Return the run of these detectors in this process. The first call starts it. `renew`: start another one if it was shortened."""
    key = tuple(name for name in names if name != _ENVIRONMENT)
    with _lock:
        detection = _detections.get(key)
        if detection is None or (renew and detection.is_shortened):
            detection = _detections[key] = Detection(key)
            if key:
                detection.start()
    return detection


def shorten(seconds: float) -> None:
    """Give all detectors at most so many seconds from now on, because the program is about to end: delivery waits for them."""
    with _lock:
        for detection in _detections.values():
            detection.shorten(seconds)


def _before_fork() -> None:
    for detection in list(_detections.values()):
        detection.wait_for_imports()


def _reset_after_fork() -> None:
    """In a child: it is another process, and the threads of its parent do not run here."""
    global _lock
    _lock = threading.Lock()
    _detections.clear()


forks.run_in_parent(_before_fork, lambda: None)
forks.run_in_child(_reset_after_fork)
