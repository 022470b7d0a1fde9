"""A stand-in for Laminar's server and page on loopback, built from what the real ones were observed to do with our spans.

It stores every copy of a span, answers the query that clients use, and names traces as the server does. `tree`, `transcript`, `preview` and
`red` are what the page shows; `complaints` returns what it would show wrongly. The server keeps no resource, links or status, so these are
only compared with what the page can show. It has no database, no search, no gRPC, and none of Laminar's other rules.
"""

from __future__ import annotations

import json
import math
import re
import uuid

from collectors import HttpCollector

TYPES = {"DEFAULT", "LLM", "TOOL", "EXECUTOR", "PIPELINE", "EVALUATOR", "CACHED"}
LIMIT = 5 << 20
MINUTE = 60_000_000_000
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
ASSOCIATION = "lmnr.association.properties."


class LaminarServer(HttpCollector):
    key = "lmnr-project-key-secret"

    def __init__(self):
        super().__init__()
        self.rows = []
        self.trace_names = {}
        self.authorization = f"Bearer {self.key}"
        self.may_query = True
        self.queries = []
        self.is_slow = False
        """Whether queries do not find yet what arrives: it waits in a queue. `settle` ends that."""
        self._queued = 0

    def settle(self):
        """Let queries find everything that has arrived."""
        self._queued = 0

    def keep(self, spans):
        """Store the spans, except those of LangChain's inner steps, and name each trace of the batch: after its root, else after the first path element of a span that came without."""
        spans = [span for span in spans if not re.search(r"Runnable.*\.task$", span.name)]
        self.rows += spans
        self._queued += len(spans) if self.is_slow else 0
        for span in spans:
            self.trace_names[span.trace_id] = (span.attributes.get("lmnr.span.path") or [span.name])[0]
        for span in spans:
            if not span.parent_span_id:
                self.trace_names[span.trace_id] = span.name

    def handle(self, request, body):
        if request.headers["authorization"] != self.authorization:
            return 401
        if request.path == "/v1/sql/query":
            return self.query(json.loads(body)["query"])
        if request.path != "/v1/traces":
            return 404
        if len(body) > LIMIT:
            return 413
        return super().handle(request, body)

    def query(self, text):
        self.queries.append(text)
        if not self.may_query:
            return 404  # an ingest-only key
        traces, ids = (set(re.findall(r"'([0-9a-f-]{36})'", part)) for part in text.partition("AND")[::2])
        rows = [{"span_id": span_uuid(row)} for row in self._queryable_rows() if trace_uuid(row) in traces and span_uuid(row) in ids]
        return 200, {"content-type": "application/json"}, json.dumps({"data": rows}).encode()

    def _queryable_rows(self):
        return self.rows[: len(self.rows) - self._queued]

    def complaints(self):
        """Return what a person would see going wrong."""
        checks = (self._check_place, self._check_trace, _check_type, _check_values, _check_operation_or_task, _check_links)
        return [f"{row.name}: {complaint}" for row in self.rows for check in checks for complaint in check(row)]

    def _check_place(self, row):
        """Where the page shows the span: not twice, not elsewhere, and not nowhere."""
        ids, path = row.attributes.get("lmnr.span.ids_path"), row.attributes.get("lmnr.span.path")
        if sum(span_uuid(other) == span_uuid(row) for other in self.rows) > 1:
            yield "stored twice"
        if ids is not None and (path is None or len(ids) != len(path)):
            yield "path and ids path do not match"
        if (path and path[-1] != row.name) or (ids and ids[-1] != span_uuid(row)):
            yield "a path that does not end with it"
        chain = self._chain(row)
        if ids and (ids[-len(chain) :] != chain or (len(ids) > 1) != bool(row.parent_span_id)):
            yield "re-parented, or a false root"
        if not self._is_in_tree(row):
            yield "hidden, because its parent has not arrived"

    def _check_trace(self, row):
        """What one span does to the whole trace: the last one to arrive names it, and the earliest one says when it was."""
        trace = [other for other in self.rows if other.trace_id == row.trace_id]
        roots = [other for other in trace if not other.parent_span_id]
        if roots and row is roots[0] and self.trace_names[row.trace_id] not in {root.name for root in roots}:
            yield f"its trace is called {self.trace_names[row.trace_id]}"
        if roots and row.start_unix_nano < min(root.start_unix_nano for root in roots) - MINUTE:
            yield "moves its trace in the list, to an earlier time"
        for name, value in row.attributes.items():
            if name.startswith(ASSOCIATION + "metadata."):
                values = [other.attributes[name] for other in trace if name in other.attributes]
                if not isinstance(value, str) or any(other != value for other in values):
                    yield f"{name} is lost, or overwritten by another span"

    def _chain(self, row):
        """Return the ids of the span and of its ancestors, as far as these have arrived, and the one above them."""
        stored = {other.span_id: other for other in self.rows if other.trace_id == row.trace_id}
        chain = [span_uuid(row)]
        while row is not None and row.parent_span_id and len(chain) <= len(stored):
            chain.insert(0, id_uuid(row.parent_span_id))
            row = stored.get(row.parent_span_id)
        return chain

    def _is_in_tree(self, row):
        has_path = {"lmnr.span.path", "lmnr.span.ids_path"} <= row.attributes.keys()
        return not row.parent_span_id or has_path or any(other.span_id == row.parent_span_id for other in self.rows)

    def tree(self):
        """Return the spans in the view as a tree and in the timeline: those whose parent has arrived, and those that have the whole path."""
        return [row.name for row in self.rows if self._is_in_tree(row)]

    @staticmethod
    def preview(row):
        """Return the line of a span in the transcript: `description`, `summary` or `command` of its input, else whatever comes first."""
        values = json.loads(row.attributes.get("lmnr.span.input", "{}"))
        lines = [values[key] for key in ("description", "summary", "command") if key in values]
        return next(iter([*lines, *values.values()]), "")

    def transcript(self):
        """Return the default view: only spans with a type, also those whose parent has not arrived."""
        return [row.name for row in self.rows if row.attributes.get("lmnr.span.type", "DEFAULT") != "DEFAULT"]

    def red(self, rows=None):
        """Return the spans that are shown as failed; of all, unless some are given."""
        return [row.name for row in (self.rows if rows is None else rows) if any(event.name == "exception" for event in row.events)]


def _check_type(row):
    """What the server takes the span for."""
    if row.attributes.get("lmnr.span.type", "DEFAULT") not in TYPES:
        yield "a type that becomes DEFAULT"
    if any(name.startswith(("gen_ai.", "ai.toolCall.")) for name in row.attributes):
        yield "a model call"
    if len(row.trace_id) != 32:
        yield "a trace id that the server cannot read"
    if row.end_unix_nano < row.start_unix_nano:
        yield "a negative duration"
    has_exception = any(event.name == "exception" for event in row.events)
    if has_exception != (row.status == "error"):
        yield "red, although it did not fail" if has_exception else "not red, and the message is lost"


def _check_values(row):
    """What the server does to the values of attributes."""
    facts = row.attributes
    for name in ("lmnr.span.input", "lmnr.span.output", ASSOCIATION + "session_id", ASSOCIATION + "user_id"):
        if not isinstance(facts.get(name, ""), str):
            yield f"{name} is lost"
    tags = facts.get(ASSOCIATION + "tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        yield "tags are lost"
    values = [each for value in facts.values() for each in (value if isinstance(value, list) else [value])]
    numbers = [value for value in values if isinstance(value, float)]
    for name in ("lmnr.span.input", "lmnr.span.output"):
        if isinstance(facts.get(name), str):
            json.loads(facts[name], parse_constant=lambda text: numbers.append(float(text)))
    if not all(map(math.isfinite, numbers)):
        yield "a number that becomes null"
    if any(isinstance(value, str) and re.fullmatch('".*"', value, re.DOTALL) for value in values):
        yield "a text that loses its quotes"


def _check_operation_or_task(row):
    """What the page needs to show a checkpoint or a task."""
    facts = row.attributes
    operation = facts.get("checkpoint.operation")
    is_in_transcript = facts.get("lmnr.span.type", "DEFAULT") != "DEFAULT"
    is_inside = any(name.startswith("checkpoint.") for name in facts.get("lmnr.span.path", ())[:-1])
    is_upkeep = row.status != "error" and ("checkpoint.retention" in facts or (operation == "prune" and is_inside))
    if operation and not is_upkeep and not is_in_transcript:
        yield "not in the transcript"
    if is_in_transcript and (not operation or is_upkeep):
        yield "a line that hides others in the transcript"
    yield from _check_preview(row) if operation else ()
    if row.name.startswith("task ") and not {"lmnr.span.input", "lmnr.span.output"} <= facts.keys():
        yield "an empty page of the trace"
    for ours, theirs in (("session.id", "session_id"), ("user.id", "user_id")):
        if ours in facts and ASSOCIATION + theirs not in facts:
            yield f"not found by its {ours}"
    if row.name.startswith(("task ", "checkpoint.")) and "service.name" in row.resource and "service.name" not in facts:
        yield "the resource is lost"


def _check_links(row):
    """The server keeps no links, and its pages are found by UUIDs."""
    facts = row.attributes
    if len(row.links) != len(facts.get("link.span_id", ())):
        yield "a link is lost"
    ids = [each for name in ("link.trace_id", "link.span_id") for each in facts.get(name, ())]
    if "checkpoint.source.span_id" in facts:
        output = json.loads(facts.get("lmnr.span.output", "{}"))
        if {"source.trace", "source.span"} <= output.keys():
            ids += [output["source.trace"], output["source.span"]]
        else:
            yield "a restore that does not name its source"
    if not all(re.fullmatch(UUID, each) for each in ids):
        yield "a link that leads nowhere"


def _check_preview(row):
    """The line of an operation says step and size, or why it failed."""
    preview, facts = str(LaminarServer.preview(row)), row.attributes
    failures = [event.attributes["exception.type"] for event in row.events if "exception.type" in event.attributes]
    expected = [f"step {facts['checkpoint.step']}"] if "checkpoint.step" in facts else []
    if row.status == "error":
        expected += failures[:1] or [facts.get("checkpoint.outcome", "")]
    elif "checkpoint.size.stored" in facts:
        expected.append("B")
    if not all(text in preview for text in expected):
        yield "no readable preview"


def id_uuid(span_id):
    return str(uuid.UUID(int=int(span_id, 16)))


def span_uuid(span):
    return id_uuid(span.span_id)


def trace_uuid(span):
    return str(uuid.UUID(span.trace_id))
