"""Where a trace can be looked at: the pages of Laminar, Phoenix, MLflow and Jaeger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, urlsplit

from ckpt_observe.config import Settings
from ckpt_observe.endpoints import MLFLOW_EXPERIMENT, TRACES_PATH, Endpoint, is_phoenix
from ckpt_observe.errors import HttpError
from ckpt_observe.prometheus_settings import is_loopback
from ckpt_observe.semconv import laminar
from ckpt_observe.support.answers import decode_json
from ckpt_observe.support.http_client import HttpClient

_LAMINAR_CLOUD: Final = {"api.lmnr.ai": "https://www.laminar.sh"}
"""The page of Laminar's cloud, by the host of its API."""
_LAMINAR_PORT: Final = 5667
_JAEGER_PORT: Final = 16686
_PROBE_SECONDS: Final = 1.0
"""Jaeger's page is a guess: the address is that of the OTLP server, on Jaeger's default port. So it is asked, but not for long."""


def trace_links(settings: Settings, trace_id: str) -> Iterator[tuple[str, str]]:
    """Yield the exporter and the address of the trace in its backend, for each exporter whose backend has pages."""
    if endpoint := settings.endpoints.get("laminar"):
        yield "laminar", f"{_laminar_page(endpoint)}/traces/{laminar.trace_uuid(trace_id)}"
    if (endpoint := settings.endpoints.get("otlp")) and (link := _otlp_link(endpoint, trace_id)):
        yield "otlp", link


def _otlp_link(endpoint: Endpoint, trace_id: str) -> str:
    """Return the address of a trace in MLflow, Phoenix or Jaeger; an empty string if the server is none of them."""
    server = endpoint.shown.removesuffix(TRACES_PATH)
    if experiment := endpoint.headers.get(MLFLOW_EXPERIMENT):
        return f"{server}/#/experiments/{quote(experiment, safe='')}/traces?selectedEvaluationId=tr-{trace_id}"
    if is_phoenix(endpoint):
        return f"{server}/redirects/traces/{trace_id}"
    page = _jaeger_page(endpoint)
    return f"{page}/trace/{trace_id}" if page else ""


def _laminar_page(endpoint: Endpoint) -> str:
    """Return the address of Laminar's page for its API, as Laminar's SDK does."""
    parts = urlsplit(endpoint.url)
    host = parts.hostname or ""
    if host in _LAMINAR_CLOUD:
        return _LAMINAR_CLOUD[host]
    return f"{parts.scheme}://{_bracketed(host)}:{_LAMINAR_PORT}" if is_loopback(host) else endpoint.shown.removesuffix(TRACES_PATH)


def _jaeger_page(endpoint: Endpoint) -> str:
    """Return the address of Jaeger's page on the host of the OTLP server, or an empty string if no Jaeger answers there."""
    page = f"http://{_bracketed(urlsplit(endpoint.url).hostname or '')}:{_JAEGER_PORT}"
    client = HttpClient(_PROBE_SECONDS)
    try:
        answer = client.request("GET", f"{page}/api/services")
        services = decode_json(answer.body, object)
    except (HttpError, ValueError):
        return ""
    finally:
        client.close()
    return page if answer.is_success and isinstance(services, dict) and "data" in services else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
