"""Arize Phoenix and MLflow: servers whose pages show each span with a kind, an input and an output. Spans are read back as those pages do."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass

import processes
from telemetry import get

START_SECONDS = 300
"""They import hundreds of modules: 12 s of CPU time."""


@dataclass(frozen=True)
class PageSpan:
    """What a page shows of a span."""

    span_id: str
    parent_span_id: str
    name: str
    status: str
    kind: str | None
    input: dict | None
    output: dict | None


class Phoenix:
    def __init__(self, directory):
        self.program, self._directory = processes.program("phoenix"), directory
        self.http, self.grpc = processes.free_port(), processes.free_port()
        self.url = f"http://127.0.0.1:{self.http}"

    def running(self):
        settings = {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": self.http,
            "PHOENIX_GRPC_PORT": self.grpc,
            "PHOENIX_WORKING_DIR": self._directory,
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        return processes.running(
            [self.program, "serve"], lambda: processes.answers(f"{self.url}/healthz"), seconds=START_SECONDS, env=_environment(settings)
        )

    def variables(self, project, protocol="http/protobuf"):
        """Return the environment variables for a program whose spans go to a project."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.grpc}" if protocol == "grpc" else self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}",
        }

    def spans(self, project):
        """Return the spans of a project; none before it exists."""
        try:
            rows = get(f"{self.url}/v1/projects/{project}/spans", limit=1000)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []
        return [
            PageSpan(
                span_id=row["context"]["span_id"],
                parent_span_id=row["parent_id"] or "",
                name=row["name"],
                status=row["status_code"].lower(),
                kind=row["span_kind"],
                input=_parsed(row["attributes"].get("input.value")),
                output=_parsed(row["attributes"].get("output.value")),
            )
            for row in rows
        ]

    def filtered(self, project, condition):
        """Return the names of the spans that a filter of the page finds."""
        query = "query($id: ID!, $condition: String) { node(id: $id) { ... on Project { spans(first: 1000, filterCondition: $condition) "
        query += "{ edges { node { name } } } } } }"
        project_id = get(f"{self.url}/v1/projects/{project}")["data"]["id"]
        answer = _post(f"{self.url}/graphql", {"query": query, "variables": {"id": project_id, "condition": condition}})
        assert "errors" not in answer, answer
        return [edge["node"]["name"] for edge in answer["data"]["node"]["spans"]["edges"]]


class Mlflow:
    def __init__(self, directory):
        self.program, self._directory = processes.program("mlflow"), directory
        self.port = processes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def running(self):
        command = [self.program, "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        return processes.running(
            command,
            lambda: processes.answers(f"{self.url}/health"),
            seconds=START_SECONDS,
            cwd=self._directory,
            env=_environment({"MLFLOW_DISABLE_TELEMETRY": "true"}),
        )

    def create_experiment(self, name):
        return _post(f"{self.url}/api/2.0/mlflow/experiments/create", {"name": name})["experiment_id"]

    def variables(self, experiment):
        """Return the environment variables for a program whose traces go to an experiment."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_EXPORTER_OTLP_HEADERS": f"x-mlflow-experiment-id={experiment}"}

    def traces(self, experiment):
        """Return the list of traces, as the server describes them."""
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
        return _post(f"{self.url}/api/3.0/mlflow/traces/search", {"locations": [location], "max_results": 100}).get("traces", [])

    def spans(self, experiment):
        """Return the spans of all traces of an experiment."""
        return [_mlflow_span(row) for trace in self.traces(experiment) for row in self._rows(trace["trace_id"])]

    def links(self, experiment):
        """Return the id of each linked span, by the name of the span that has the link."""
        rows = [row for trace in self.traces(experiment) for row in self._rows(trace["trace_id"])]
        return {row["name"]: link["span_id"] for row in rows for link in row.get("links") or ()}

    def _rows(self, trace_id):
        return get(f"{self.url}/ajax-api/3.0/mlflow/get-trace-artifact", request_id=trace_id)["spans"]


def _mlflow_span(row):
    attributes = row["attributes"]
    return PageSpan(
        span_id=_hex(row["span_id"]),
        parent_span_id=_hex(row.get("parent_span_id") or ""),
        name=row["name"],
        status=row["status"]["code"].removeprefix("STATUS_CODE_").lower(),
        kind=_parsed(attributes.get("mlflow.spanType")),
        input=_parsed(attributes.get("mlflow.spanInputs")),
        output=_parsed(attributes.get("mlflow.spanOutputs")),
    )


def _parsed(text):
    return None if text is None else json.loads(text)


def _hex(text):
    return base64.b64decode(text).hex()


def _environment(settings):
    return {**os.environ, **{name: str(value) for name, value in settings.items()}}


def _post(url, content):
    request = urllib.request.Request(url, json.dumps(content).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
