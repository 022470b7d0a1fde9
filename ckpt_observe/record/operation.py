"""Operations and tasks: begun, made current, ended exactly once, each step written down when it happens.

Nothing here raises into the host: see `guard`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import trace
from opentelemetry.context import get_current

from ckpt_observe.record import parents, redact, resources
from ckpt_observe.record.classify import classify
from ckpt_observe.record.current import CurrentSpan
from ckpt_observe.record.failure import described
from ckpt_observe.record.guard import fault
from ckpt_observe.record.ids import new_span_id, new_trace_id
from ckpt_observe.record.line import line
from ckpt_observe.record.parents import OPERATION_KEY, SPAN_KEY, TASK_KEY
from ckpt_observe.record.phase import Phase
from ckpt_observe.record.recorder import Page, recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans

_monotonic, _wall, _thread = time.perf_counter_ns, time.time_ns, threading.get_ident


class Operation(CurrentSpan):
    """One checkpoint operation. `with` it, or `begin` and `finish` it; a phase of it is `operation.phase(name)`."""

    __slots__ = (
        "_given", "_last_usage", "_usage", "failed_phase", "live", "numbers", "offset", "page", "phases", "span_id", "started", "thread",
        "trace_id",
    )  # fmt: skip

    kind = events.OPERATION
    page: Page
    thread: int

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._given = attributes
        self._attributes = None
        self._token = None
        self.live: list[Page] = []
        """The page while the operation runs. Popped to end it: one step, so it ends once, whoever comes."""
        self.failed_phase: str | None = None
        self.trace_id = self.span_id = ""

    def begin(self) -> None:
        """Start it, without making it current."""
        try:
            here = get_current()
            above: Any = here.get(SPAN_KEY)
            if type(above) in _OURS:
                self.trace_id, parent = above.ids()
            else:
                found = parents.find(above, recorder.traceparent)
                if found is None:
                    self.trace_id, parent = new_trace_id(), ""
                elif found.sampled:
                    self.trace_id, parent = found.trace, found.span
                else:
                    return  # the parent's decision is kept: its trace is not recorded
            page = recorder.take()
            if page is None:
                return
            task: Any = here.get(TASK_KEY)
            attributes = self._given if task is None else {**task.shared, **(self._given or {})}
            self.span_id = new_span_id()
            self.thread = _thread()
            self._usage = self._last_usage = resources.usage()
            self.phases: list[tuple[Any, ...]] = []
            self.numbers = itertools.count(1)
            self.started = started = _monotonic()
            # one reading of the wall clock; all further times come from the monotonic one, so no duration is ever negative
            self.offset = offset = _wall() - started
            page.append(line((events.BEGIN, self.span_id, started + offset, self.kind, self.name, self.trace_id, parent, attributes)))
            self.page = page
            self.live.append(page)
        except Exception as error:
            fault(error)

    def resume(self) -> None:
        """Make it current."""
        if self.live:
            self.make_current(get_current(), SPAN_KEY, OPERATION_KEY)

    def __enter__(self) -> Self:
        self.begin()
        self.resume()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.suspend()
        self.finish(error)

    def finish(self, error: BaseException | None = None) -> None:
        """End it, with the exception that ended it if there was one. Only the first call counts."""
        try:
            page = self.live.pop()
        except IndexError:
            return
        try:
            ended = _monotonic()
            if ended - self.started > resources.WORTH_ASKING and self._usage is not None and self.thread == _thread():
                self.note(resources.used(self._usage, resources.usage()))
            if error is not None:
                self._fail(error, ended + self.offset, page)
            page.finish(line((events.END, self.span_id, ended + self.offset, self._attributes, self.phases)))
        except Exception as own:
            fault(own)

    def _fail(self, error: BaseException, now: int, page: Page) -> None:
        found = classify(error)
        if found.outcome == "error":
            page.append(line((events.EVENT, self.span_id, now, spans.EVENT_EXCEPTION, described(error, stack=True))))
        self.note(found.attributes(self.failed_phase))

    def phase(self, name: str) -> Phase:
        """A part of this operation, to be used in a `with`."""
        return Phase(self, name)

    def link(self, trace_id: str, span_id: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Point to another span, such as the save that a restore comes from."""
        if self.live:
            self.write((events.LINK, self.span_id, _monotonic() + self.offset, trace_id, span_id, attributes or {}))

    def traceparent(self) -> str:
        """The W3C trace context of this operation; empty if it is not recorded."""
        return f"00-{self.trace_id}-{self.span_id}-01" if self.span_id else ""

    def cpu_since_last(self) -> dict[str, Any]:
        """CPU of the thread since the last reading; phases in between that were too short to ask add 0.1 ms each at most."""
        before, self._last_usage = self._last_usage, resources.usage()
        return {} if before is None else {names.CPU_TIME: resources.cpu_seconds(before, self._last_usage)}

    def write(self, event: tuple[Any, ...]) -> None:
        """Keep a line while the operation runs."""
        try:
            if self.live:
                self.page.append(line(event))
        except Exception as error:
            fault(error)

    def ids(self) -> tuple[str, str]:
        return self.trace_id, self.span_id

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        if self.live:
            self.write((events.EVENT, self.span_id, timestamp or _monotonic() + self.offset, name, redact.attributes(attributes or {})))

    def add_link(self, context: trace.SpanContext, attributes: Any = None) -> None:
        self.link(f"{context.trace_id:032x}", f"{context.span_id:016x}", redact.attributes(attributes or {}))

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False  # noqa: ARG002
    ) -> None:
        self.add_event(spans.EVENT_EXCEPTION, {**described(exception, stack=True), **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:  # noqa: ARG002 - OpenTelemetry's name and signature
        self.finish()


class Task(Operation):
    """A run that makes checkpoints. What `shared` holds is put on every operation within it."""

    __slots__ = ("shared",)

    kind = events.TASK

    def __init__(self, name: str, shared: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, {**shared, **(attributes or {})})
        self.shared = shared

    def resume(self) -> None:
        if self.live:
            self.make_current(get_current(), SPAN_KEY, TASK_KEY)


_OURS: Final = frozenset({Operation, Task, Phase})


def current() -> Operation | None:
    """The operation that is running here, if any."""
    found: Any = get_current().get(OPERATION_KEY)
    return found  # type: ignore[no-any-return]
