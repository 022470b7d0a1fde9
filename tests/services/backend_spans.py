"""Reads spans back from each backend as our own `Span`, so that they can be compared."""

from __future__ import annotations

import json
import subprocess
import sys

from ckpt_observe.span import Span, SpanEvent, SpanLink, from_json_line

_OTLP_STATUS = {0: "unset", 1: "ok", 2: "error"}


def from_local_store(state):
    """Read the local store with our own command, ordered by id."""
    command = [sys.executable, "-m", "ckpt_observe", "traces", "--json", "--limit", "1000", "--dir", str(state)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    return _sorted(map(from_json_line, lines))


def from_collector(file):
    """Read every copy in the file of an OTel Collector. An incomplete last line is ignored."""
    lines = file.read_bytes().rpartition(b"\n")[0].splitlines() if file.exists() else ()
    return _sorted(span for line in lines for group in json.loads(line)["resourceSpans"] for span in _otlp_group(group))


def _otlp_group(group):
    resource = _otlp_attributes(group["resource"])
    for scope in group["scopeSpans"]:
        for span in scope["spans"]:
            yield Span(
                trace_id=span["traceId"],
                span_id=span["spanId"],
                parent_span_id=span.get("parentSpanId", ""),
                name=span["name"],
                start_unix_nano=int(span["startTimeUnixNano"]),
                end_unix_nano=int(span["endTimeUnixNano"]),
                status=_OTLP_STATUS[span["status"].get("code", 0)],
                attributes=_otlp_attributes(span),
                events=tuple(SpanEvent(each["name"], int(each["timeUnixNano"]), _otlp_attributes(each)) for each in span.get("events", ())),
                links=tuple(SpanLink(each["traceId"], each["spanId"], _otlp_attributes(each)) for each in span.get("links", ())),
                resource=resource,
            )


def _otlp_attributes(holder):
    return {pair["key"]: _otlp_value(pair["value"]) for pair in holder.get("attributes", ())}


def _otlp_value(value):
    [(kind, content)] = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "arrayValue":
            return [_otlp_value(item) for item in content.get("values", ())]
        case _:
            return content


def from_jaeger(traces):
    """Convert the answer of Jaeger's query API. Jaeger stores microseconds, so times are omitted, and events have only their names."""
    return _sorted(_jaeger_span(span, trace["processes"]) for trace in traces for span in trace["spans"])


def _jaeger_span(span, processes):
    tags = _jaeger_tags(span["tags"])
    links = [SpanLink(each["traceID"], each["spanID"]) for each in span["references"] if each["refType"] == "FOLLOWS_FROM"]
    parents = [each["spanID"] for each in span["references"] if each["refType"] == "CHILD_OF"]
    process = processes[span["processID"]]
    return Span(
        trace_id=span["traceID"],
        span_id=span["spanID"],
        parent_span_id=parents[0] if parents else "",
        name=span["operationName"],
        start_unix_nano=0,
        end_unix_nano=0,
        status=tags.pop("otel.status_code", "unset").lower(),
        attributes={key: value for key, value in tags.items() if key not in _JAEGER_TAGS},
        events=tuple(SpanEvent(_jaeger_tags(log["fields"]).pop("event"), 0) for log in span["logs"]),
        links=tuple(links),
        resource={**_jaeger_tags(process["tags"]), "service.name": process["serviceName"]},
    )


_JAEGER_TAGS = (
    "span.kind",
    "error",
    "otel.status_description",
    "otel.scope.name",
    "otel.scope.version",
    "w3c.tracestate",
    "internal.span.format",
)


def _jaeger_tags(tags):
    return {tag["key"]: tag["value"] for tag in tags}


def as_stored_by_jaeger(span):
    """Return the span without what Jaeger does not store."""
    return Span(
        **{name: getattr(span, name) for name in ("trace_id", "span_id", "parent_span_id", "name", "status", "resource")},
        attributes={
            key: json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value for key, value in span.attributes.items()
        },
        start_unix_nano=0,
        end_unix_nano=0,
        events=tuple(SpanEvent(each.name, 0) for each in span.events),
        links=tuple(SpanLink(each.trace_id, each.span_id) for each in span.links),
    )


def _sorted(spans):
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))
