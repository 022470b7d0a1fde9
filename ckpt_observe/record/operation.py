"""Operations: begun, made current, ended exactly once, each step written down when it happens.

An operation *is* the current OpenTelemetry span while it runs, and answers for the phase that is running in it: spans of other
instrumentations nest beneath that phase, and `trace.get_current_span().set_attribute(...)` in the host reaches it. Nothing here raises
into the host: see `guard`.

This is the hot path. A phase is two words in a page of shared memory and one tuple in a context variable of ours; only the operation
is attached to OpenTelemetry's context, and only its begin and its end are lines.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Raw
from opentelemetry.context import Context, attach, detach, get_current

from ckpt_observe.record import parents, redact, resources
from ckpt_observe.record.classify import classify
from ckpt_observe.record.failure import described
from ckpt_observe.record.guard import fault
from ckpt_observe.record.ids import new_span_id, new_trace_id
from ckpt_observe.record.line import line
from ckpt_observe.record.otel_span import OtelSpan
from ckpt_observe.record.parents import SPAN_KEY, SUPPRESSED, SUPPRESSED_BY_NAME, TASK_KEY
from ckpt_observe.record.recorder import Page, recorder
from ckpt_observe.record.unsampled import Unsampled
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans
from ckpt_observe.semconv.events import phase_span_id

if TYPE_CHECKING:
    from ckpt_observe.record.phase import Phase

_monotonic, _wall, _thread = time.perf_counter_ns, time.time_ns, threading.get_ident
_quick: set[str] = set()
"""Operations that last took less than 0.1 ms: not worth two system calls to learn what they used."""
_NOTHING: Final[Mapping[str, Any]] = {}
_OURS: set[type] = set()
"""Operations and their kinds. Asked for each operation that begins, where `isinstance` of an abstract class would cost more."""
_set_item: Final = dict.__setitem__  # a Context refuses to be changed; a new one is not anybody's yet

where: ContextVar[tuple[Operation, int, Phase | None] | None] = ContextVar("ckpt_observe-where", default=None)
"""The operation that runs here, the number of its phase (0: none), and that phase's object if somebody holds one."""


class Operation(OtelSpan):
    """One checkpoint operation. `with` it, or `begin` and `finish` it; a phase of it is `operation.phase(name)`."""

    __slots__ = (
        "_attributes", "_given", "_here", "_known", "_last_usage", "_token", "_usage", "ancestors", "failed_phase", "inherited", "live",
        "name", "numbers", "offset", "page", "phases", "running", "span_id", "started", "thread", "trace_id",
    )  # fmt: skip

    kind = events.OPERATION
    tells_message = True
    """Whether what an exception says is told beside its type."""
    page: Page
    thread: int
    started: int
    offset: int

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None, known: Raw | None = None) -> None:
        """`known` are further attributes, encoded before: see `line.prepared`."""
        self.name = name
        self._given = attributes
        self._known = known
        self._attributes: dict[str, Any] | None = None
        self._token: Any = None
        self.failed_phase: str | None = None
        self.live: list[Page] = []
        """The page while the operation runs. Popped to end it: one step, so it ends once, whoever comes."""
        self.running = 0
        """Number of the patched call that runs in the operation's own thread as a phase. Of all phases open there, the innermost has the
        highest number."""
        self.trace_id = self.span_id = ""
        self.ancestors: tuple[str, ...] | None = ()
        """`events.ancestor` of each span above, the root first; None where they are not all known. Laminar needs them before those end."""
        self.inherited: Mapping[str, Any] = _NOTHING

    def __init_subclass__(cls) -> None:
        _OURS.add(cls)

    # its life

    def begin(self) -> Context | None:
        """Start it, without making it current. Returns the context it begins in; None if it is not recorded."""
        if not recorder.on:
            return None
        try:
            here = get_current()
            if here and (here.get(SUPPRESSED) or here.get(SUPPRESSED_BY_NAME)):
                return None
            above: Any = here.get(SPAN_KEY)
            if type(above) in _OURS:
                self.trace_id, parent = above.ids()
                self.ancestors = above.chain()
            else:
                found, samples = parents.find(above, recorder.traceparent), recorder.samples
                if found is None:
                    self.trace_id, parent = new_trace_id(), ""
                    if samples is not None and not samples(self.trace_id, None):
                        self._leave_out(here)
                        return None
                elif found.sampled if samples is None else samples(found.trace, found.sampled):
                    self.trace_id, parent = found.trace, found.span
                    self.ancestors, self.inherited = found.chain, found.facts
                else:
                    return None  # the parent's decision is kept: its trace is not recorded
            page = recorder.take()
            if page is None:
                self.trace_id = ""
                return None
            task: Any = here.get(TASK_KEY)
            attributes = self._given if task is None else {**task.shared, **(self._given or {})}
            if self.ancestors or self.inherited:
                attributes = {**self.inherited, **(attributes or {}), events.ANCESTORS: self.ancestors}
            self.span_id = span_id = new_span_id()
            self.thread = _thread()
            self._usage = self._last_usage = None if self.name in _quick else resources.usage()
            self.phases: list[tuple[Any, ...]] = []
            self.numbers = itertools.count(1)
            self.started = started = _monotonic()
            # one reading of the wall clock; all further times come from the monotonic one, so no duration is ever negative
            self.offset = offset = _wall() - started
            begun = (events.BEGIN, span_id, started + offset, self.kind, self.name, self.trace_id, parent, attributes, self._known)
            self.page = page
            self.live.append(page)
            page.append(line(begun))
        except BaseException as error:
            self.finish(error)  # if a signal handler raised it, it may have begun, and the host goes on without it
            fault(error)
            return None
        return here

    def resume(self) -> None:
        """Make it current."""
        if self.live:
            self._make_current(get_current())
        elif self.trace_id and not self.span_id:
            self._leave_out(get_current())

    def _leave_out(self, here: Context) -> None:
        """The root of a trace that is not recorded. It has a trace id and no span id; what happens in it is not recorded either."""
        context = Context(here)
        _set_item(context, SPAN_KEY, Unsampled(self))
        self._here = where.set(None)
        self._token = attach(context)

    def _make_current(self, here: Context) -> None:
        context = Context(here)
        _set_item(context, SPAN_KEY, self)
        self._here = where.set((self, 0, None))
        self._token = attach(context)

    def suspend(self) -> None:
        """No longer current, though not ended: between two steps of a generator, or when the rest happens elsewhere."""
        token = self._token
        if token is not None:
            self._token = None
            try:
                where.reset(self._here)
                detach(token)
            except ValueError:  # left in another context than it was entered in: that one keeps what it has
                where.set(None)

    def __enter__(self) -> Self:
        here = self.begin()
        try:
            if here is not None:
                self._make_current(here)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.suspend()
        finally:  # whatever a signal handler raises meanwhile
            self.finish(error)

    def finish(self, error: BaseException | None = None) -> None:
        """End it, with the exception that ended it if there was one. Only the first call counts."""
        if not self.live:  # not recorded: an exception would cost more than all the rest
            return
        try:
            page = self.live.pop()
        except IndexError:
            return
        failed: BaseException | None = None
        try:
            ended = _monotonic()
            offset = self.offset
            if ended - self.started < resources.WORTH_ASKING:
                _quick.add(self.name)
            else:
                _quick.discard(self.name)
                if self._usage is not None and self.thread == _thread():
                    self.note(resources.used(self._usage, resources.usage()))
            if error is not None:
                found = classify(error)
                if found.outcome == "error":
                    told = described(error, stack=True, message=self.tells_message)
                    page.append(line((events.EVENT, self.span_id, ended + offset, spans.EVENT_EXCEPTION, told)))
                self.note(found.attributes(self.failed_phase))
            last = line((events.END, self.span_id, ended + offset, self._attributes, self.phases, offset))
        except BaseException as own:  # a fault, or what a signal handler raised: it has ended all the same
            last, failed = self._least_end(error), own
        try:
            page.finish(last)  # once: a page that is given back twice would be the page of two operations
        except Exception as own:
            fault(own)
        if failed is not None:
            fault(failed)

    def _least_end(self, error: BaseException | None) -> bytes:
        """What can be said when saying all failed: it ended, and how."""
        outcome = {names.OUTCOME: "ok" if error is None else "error"}
        return line((events.END, self.span_id, _monotonic() + self.offset, outcome, [], 0))

    # what is said of it

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes: names of the registry, or your own. Values must be small; secrets are taken out."""
        try:
            self.note(redact.attributes(attributes))
        except Exception as error:
            fault(error)

    def note(self, attributes: dict[str, Any]) -> None:
        """`set` for attributes that are ours: names of the registry, and values that hold no secret but by accident. Keeps the dict."""
        if self._attributes is None:
            self._attributes = attributes
        else:
            self._attributes.update(attributes)

    def phase(self, name: str) -> Phase:
        """A part of this operation, to be used in a `with`."""
        from ckpt_observe.record.phase import Phase  # noqa: PLC0415 - a phase knows its operation

        return Phase(self, name)

    def link(self, trace_id: str, span_id: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Point to another span, such as the save that a restore comes from. What is not a span's id is left out, as OpenTelemetry does."""
        if self.live and (other := parents.parse(f"00-{trace_id}-{span_id}-01".lower())):
            self.write((events.LINK, self.span_id, self.now(), other.trace, other.span, redact.attributes(attributes)))

    def traceparent(self) -> str:
        """The W3C trace context of this operation; empty if it is not recorded."""
        return f"00-{self.trace_id}-{self.span_id}-01" if self.span_id else ""

    def cpu_since_last(self) -> dict[str, Any]:
        """CPU of the thread since the last reading; phases in between that were too short to ask add 0.1 ms each at most."""
        before = self._last_usage
        if before is None:
            return {}
        self._last_usage = resources.usage()
        return {names.CPU_TIME: resources.cpu_seconds(before, self._last_usage)}

    def now(self) -> int:
        """Unix time in nanoseconds, by the clock that never goes back."""
        return _monotonic() + self.offset

    def write(self, event: tuple[Any, ...]) -> None:
        """Keep a line while the operation runs."""
        try:
            if self.live:
                self.page.append(line(event))
        except Exception as error:
            fault(error)

    # where one is within it

    def ids(self) -> tuple[str, str]:
        """Trace and span id, in hex, of the phase that runs here, or of the operation."""
        here = where.get()
        number = self.running if here is None or here[0] is not self else max(self.running, here[1])
        return self.trace_id, phase_span_id(self.span_id, number) if number else self.span_id

    def innermost(self) -> Operation | Phase:
        """The phase that runs here, if somebody holds it; else the operation."""
        here = where.get()
        return self if here is None or here[0] is not self or here[2] is None else here[2]

    def chain(self) -> tuple[str, ...] | None:
        """From the root down to what `ids` names; None where a name is not known, as that of a patched function's phase."""
        if self.ancestors is None:
            return None
        own = (*self.ancestors, events.ancestor(self.span_id, self.kind, self.name))
        here = where.get()
        if self.running:
            return None
        if here is None or here[0] is not self or not here[1]:
            return own
        # a phase in a phase, or one whose name its function has not told: not worth a search on the host's thread
        phase = here[2]
        return (*own, events.ancestor(self.ids()[1], self.kind, phase.name)) if phase is not None and not phase.parent else None


_OURS.add(Operation)


def current() -> Operation | None:
    """The operation that is running here, if any."""
    here = where.get()
    return None if here is None else here[0]
