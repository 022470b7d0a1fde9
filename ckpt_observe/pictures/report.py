"""A report about one trace as a single HTML file, for a ticket: what happened, the timeline, the tree, all attributes, the environment."""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element

from ckpt_observe.explain import OperationExplanation
from ckpt_observe.pictures.markup import add, add_table, create_page, page_text
from ckpt_observe.pictures.redaction import redact_attribute, redact_page
from ckpt_observe.pictures.timeline import build_timeline
from ckpt_observe.pictures.timeline_svg import draw_timeline
from ckpt_observe.query import ObservedOperation, Trace
from ckpt_observe.semconv.spans import EXCEPTION_STACKTRACE
from ckpt_observe.support.formatting import format_duration, format_time

MAX_DETAILS: Final = 300
"""Operations whose attributes are listed."""
MAX_DRAWN: Final = 2000
"""Operations of the timeline."""
MAX_LINES: Final = 5000
"""Lines of the tree."""


def report_page(
    trace: Trace, tree: Sequence[str], explanations: Iterable[OperationExplanation], versions: Mapping[str, str], now_unix_nano: int
) -> str:
    """Return the report.

    Args:
        trace: The trace with its operations.
        tree: Its tree as text.
        explanations: Those of the operations that need one.
        versions: Name and version of the software that is installed here.
        now_unix_nano: When the report is made.

    """
    summary = trace.summary
    page, body = create_page(f"Checkpoint report: {summary.name}")
    origin = f"Made at {format_time(now_unix_nano)} from the trace {summary.trace_id}."
    zones = dict.fromkeys(map(_zone, (summary.start_unix_nano, summary.end_unix_nano, now_unix_nano)))
    note = f"Times are in {', then '.join(zones)}. Secrets, user and session IDs and the home directory are left out."
    add(body, "p", f"{origin} {note}", class_="note")
    _add_summary(body, trace)
    for explanation in explanations:
        _add_explanation(body, explanation)
    timeline = build_timeline(trace.operations[-MAX_DRAWN:], now_unix_nano)
    if timeline.lanes:
        add(body, "h2", "Timeline")
        body.append(draw_timeline(timeline, f"Timeline of {summary.name}"))
    add(body, "h2", "Tree")
    if len(tree) > MAX_LINES:
        add(body, "p", f"The first {MAX_LINES} of {len(tree)} lines.", class_="note")
    add(body, "pre", "\n".join(tree[:MAX_LINES]))
    _add_details(body, trace.operations, now_unix_nano)
    _add_environment(body, trace.operations, versions)
    redact_page(page)
    return page_text(page)


def _zone(unix_nano: int) -> str:
    """Return the difference of the local time, which the summer changes, to UTC: the reader of a ticket may be in another zone."""
    return f"UTC{dt.datetime.fromtimestamp(unix_nano / 1e9).astimezone().isoformat(timespec='seconds')[19:]}"


def _add_summary(body: Element, trace: Trace) -> None:
    summary = trace.summary
    outcomes = Counter(operation.outcome for operation in trace.operations if operation.kind == "operation")
    rows = [
        ("Trace", summary.trace_id),
        ("Began", format_time(summary.start_unix_nano)),
        ("Duration", format_duration((summary.end_unix_nano - summary.start_unix_nano) / 1e9)),
        ("Operations", ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "none"),
    ]
    add_table(body, (), rows)


def _add_explanation(body: Element, explanation: OperationExplanation) -> None:
    add(body, "h2", f"{explanation.operation} of {explanation.task}: {explanation.outcome}")
    add_table(body, (), explanation.paragraphs().items())


def _add_details(body: Element, operations: Sequence[ObservedOperation], now: int) -> None:
    add(body, "h2", "Operations")
    if len(operations) > MAX_DETAILS:
        add(body, "p", f"The first {MAX_DETAILS} of {len(operations)}.", class_="note")
    for operation in operations[:MAX_DETAILS]:
        details = add(body, "details")
        duration = format_duration(operation.seconds(now))
        add(details, "summary", f"{operation.name}: {operation.outcome}, {duration}, span {operation.span_id}")
        _add_attributes(details, operation.attributes)
        for event in operation.events:
            add(details, "p", f"Event {event.name} at {format_time(event.time_unix_nano)}")
            _add_attributes(details, {name: value for name, value in event.attributes.items() if name != EXCEPTION_STACKTRACE})
            if stack := event.attributes.get(EXCEPTION_STACKTRACE):
                add(details, "pre", stack)
        for link in operation.links:
            add(details, "p", f"Link to span {link.span_id} of trace {link.trace_id}")
            _add_attributes(details, link.attributes)
        if operation.phases:
            rows = []
            for phase in operation.phases:
                end = now if phase.end_unix_nano is None else phase.end_unix_nano
                facts = ", ".join(f"{name}={redact_attribute(name, value)}" for name, value in sorted(phase.attributes.items()))
                rows.append((phase.name, phase.outcome, format_duration((end - phase.start_unix_nano) / 1e9), facts))
            add_table(details, ("Phase", "Outcome", "Duration", "Attributes"), rows)


def _add_environment(body: Element, operations: Iterable[ObservedOperation], versions: Mapping[str, str]) -> None:
    add(body, "h2", "Environment")
    resources = {str(sorted(operation.resource.items(), key=str)): operation.resource for operation in operations}
    for resource in resources.values():
        add(body, "p", f"Process {resource.get('process.pid', '')} of {resource.get('service.name', '')}")
        _add_attributes(body, resource)
    add(body, "p", "Software with which this report was made")
    add_table(body, (), {"Python": sys.version.split()[0], **versions}.items())


def _add_attributes(parent: Element, attributes: Mapping[str, Any]) -> None:
    if attributes:
        add_table(parent, (), ((name, redact_attribute(name, attributes[name])) for name in sorted(attributes)))
