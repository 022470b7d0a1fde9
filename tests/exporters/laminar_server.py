"""A stand-in for Laminar's server and page on loopback, built from what the real ones were observed to do with our spans.

It stores what the server stores (every copy; no resource, links or status) and answers the query that clients use. `complaints` returns
what the page would show wrongly. It has no database, no search, and none of Laminar's other rules.
"""

from __future__ import annotations

import json
import math
import re
import uuid

from collectors import HttpCollector

TYPES = {"DEFAULT", "LLM", "TOOL", "EXECUTOR", "PIPELINE", "EVALUATOR", "CACHED"}
LIMIT = 5 << 20
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

    def keep(self, spans):
        """Store the spans, except those of LangChain's inner steps, and name each trace of the batch: after its root, else after the first path element of a span that came without."""
        spans = [span for span in spans if not re.search(r"Runnable.*\.task$", span.name)]
        self.rows += spans
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
        rows = [{"span_id": span_uuid(row)} for row in self.rows if trace_uuid(row) in traces and span_uuid(row) in ids]
        return 200, {"content-type": "application/json"}, json.dumps({"data": rows}).encode()

    def complaints(self):
        """Return what a person would see going wrong."""
        return [complaint for row in self.rows for complaint in self._check(row)]

    def _check(self, row):
        facts, row_uuid = row.attributes, span_uuid(row)
        ids, path = facts.get("lmnr.span.ids_path"), facts.get("lmnr.span.path")
        if sum(span_uuid(other) == row_uuid for other in self.rows) > 1:
            yield f"{row.name}: stored twice"
        if facts.get("lmnr.span.type", "DEFAULT") not in TYPES:
            yield f"{row.name}: a type that becomes DEFAULT"
        is_operation = "checkpoint.operation" in facts
        is_upkeep = (
            facts.get("checkpoint.operation") == "prune" and bool(path) and any(name.startswith("checkpoint.") for name in path[:-1])
        )
        if (is_operation and not is_upkeep) != (facts.get("lmnr.span.type", "DEFAULT") != "DEFAULT"):
            yield f"{row.name}: " + (
                "not in the transcript" if is_operation and not is_upkeep else "a line that hides others in the transcript"
            )
        if is_operation and row.status == "ok" and "checkpoint.step" in facts and not self.preview(row).startswith("step "):
            yield f"{row.name}: no readable preview"
        if row.name.startswith("task ") and not {"lmnr.span.input", "lmnr.span.output"} <= facts.keys():
            yield f"{row.name}: an empty page of the trace"
        if ids is not None and (path is None or len(ids) != len(path)):
            yield f"{row.name}: path and ids path do not match"
        if (path and path[-1] != row.name) or (ids and ids[-1] != row_uuid):
            yield f"{row.name}: a path that does not end with it"
        if ids and row.parent_span_id and (len(ids) < 2 or ids[-2] != str(uuid.UUID(int=int(row.parent_span_id, 16)))):
            yield f"{row.name}: re-parented, or a false root"
        if not all(re.fullmatch(UUID, each) for name in ("link.trace_id", "link.span_id") for each in facts.get(name, [])):
            yield f"{row.name}: a link that leads nowhere"
        if row.parent_span_id and not path and not any(other.span_id == row.parent_span_id for other in self.rows):
            yield f"{row.name}: hidden, because its parent has not arrived"
        for name in ("lmnr.span.input", "lmnr.span.output", ASSOCIATION + "session_id", ASSOCIATION + "user_id"):
            if not isinstance(facts.get(name, ""), str):
                yield f"{row.name}: {name} is lost"
        if not all(isinstance(tag, str) for tag in facts.get(ASSOCIATION + "tags", [])):
            yield f"{row.name}: tags are lost"
        if row.end_unix_nano < row.start_unix_nano:
            yield f"{row.name}: a negative duration"
        if len(row.trace_id) != 32:
            yield f"{row.name}: a trace id that the server cannot read"
        if any(isinstance(value, float) and not math.isfinite(value) for value in facts.values()):
            yield f"{row.name}: a number that becomes null"
        if (row.name in self.red([row])) != (row.status == "error"):
            yield f"{row.name}: " + ("not red, and the message is lost" if row.status == "error" else "red, although it did not fail")
        for name, value in facts.items():
            if name.startswith(ASSOCIATION + "metadata."):
                values = [other.attributes[name] for other in self.rows if other.trace_id == row.trace_id and name in other.attributes]
                if not isinstance(value, str) or any(other != value for other in values):
                    yield f"{row.name}: {name} is lost, or overwritten by another span"
        if any(name.startswith(("gen_ai.", "ai.toolCall.")) for name in facts):
            yield f"{row.name}: a model call"

    def preview(self, row):
        """Return the line of a span in the transcript: the page looks for `description`, `summary` or `command` in its input."""
        values = json.loads(row.attributes.get("lmnr.span.input", "{}"))
        return next((values[key] for key in ("description", "summary", "command") if key in values), "")

    def transcript(self):
        """Return the default view: only spans with a type."""
        return [row.name for row in self.rows if row.attributes.get("lmnr.span.type", "DEFAULT") != "DEFAULT"]

    def red(self, rows=None):
        """Return the spans that are shown as failed; of all, unless some are given."""
        return [row.name for row in (self.rows if rows is None else rows) if any(event.name == "exception" for event in row.events)]


def span_uuid(span):
    return str(uuid.UUID(int=int(span.span_id, 16)))


def trace_uuid(span):
    return str(uuid.UUID(span.trace_id))
