"""The settings of the exporter `prometheus`, which differ from those of other exporters: it publishes metrics instead of sending spans."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from ckpt_observe import endpoints, environment
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ConfigError
from ckpt_observe.setting_source import SettingSource
from ckpt_observe.support.parsing import parse_number, quote, split_url

MAX_INTERVAL: Final = 1_000_000_000
"""Longest interval between two pushes of metrics, in milliseconds (11 days). Threads cannot wait much longer."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """How the exporter `prometheus` publishes metrics: `/metrics` on host and port, a textfile, a Pushgateway, or OTLP."""

    host: str = "127.0.0.1"
    port: int | None = 9464
    """None: no endpoint. For programs that serve the metrics themselves, with `PrometheusCollector`."""
    token: str = field(default="", repr=False)
    tls: str = ""
    textfile: str = ""
    pushgateway: str = ""
    otlp: Endpoint | None = None
    """Where the metrics are also pushed with OTLP. None: nowhere."""
    otlp_interval: float = 60.0
    """Seconds between two such pushes."""


_DEFAULT: Final = Prometheus()


def read_prometheus(source: SettingSource) -> Prometheus:
    """Read the Prometheus settings. Metrics reveal what runs on the machine, so a host other than loopback requires a token or TLS."""
    port = str(source.get("", environment.PROMETHEUS_PORT, _DEFAULT.port))
    meaning = "a port number; use 0 to 65535, or none"
    prometheus = Prometheus(
        host=source.get("", environment.PROMETHEUS_HOST, _DEFAULT.host),
        port=None if port == "none" else parse_number(environment.PROMETHEUS_PORT, port, meaning, smallest=0, largest=65535),
        token=source.get("", environment.METRICS_TOKEN, ""),
        tls=source.get("", environment.METRICS_TLS, ""),
        textfile=source.get("", environment.TEXTFILE, ""),
        pushgateway=source.get("", environment.PUSHGATEWAY, ""),
        otlp=endpoints.otlp_metrics(source.environ) if source.get("", environment.OTLP_METRICS_ENDPOINT, "") else None,
        otlp_interval=parse_number(
            environment.METRIC_EXPORT_INTERVAL,
            source.get("", environment.METRIC_EXPORT_INTERVAL, 60_000),
            f"an interval in milliseconds; use 1 to {MAX_INTERVAL}",
            largest=MAX_INTERVAL,
        )
        / 1000,
    )
    if not (prometheus.token or prometheus.tls or is_loopback(prometheus.host)):
        remedy = f"set {environment.METRICS_TOKEN} or {environment.METRICS_TLS}, or use 127.0.0.1"
        raise ConfigError(f"{environment.PROMETHEUS_HOST}: {quote(prometheus.host)} is reachable from other machines; {remedy}")
    if prometheus.textfile and not prometheus.textfile.endswith(".prom"):
        raise ConfigError(
            f"{environment.TEXTFILE}: {quote(prometheus.textfile)} does not end in .prom, so node_exporter would not read it; rename it"
        )
    if prometheus.pushgateway and split_url(prometheus.pushgateway) is None:
        url = quote(endpoints.without_credentials(prometheus.pushgateway))
        raise ConfigError(f"{environment.PUSHGATEWAY}: {url} is not a URL; start it with http:// or https://")
    return prometheus


def is_loopback(host: str) -> bool:
    """Return whether the host is `localhost` or a loopback address, which only this machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
