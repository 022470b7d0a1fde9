"""Every environment variable that is read, with its meaning. The table makes the docs; imports nothing of ours."""

from __future__ import annotations

from typing import Final, NamedTuple


class Variable(NamedTuple):
    """One environment variable and the argument of `observe()` that overrides it."""

    name: str
    argument: str
    default: str
    meaning: str


EXPORTERS: Final = "CKPT_OBSERVE_EXPORTERS"
DIR: Final = "CKPT_OBSERVE_DIR"
PAGES_DIR: Final = "CKPT_OBSERVE_PAGES_DIR"
DELIVERY: Final = "CKPT_OBSERVE_DELIVERY"
DISK_LIMIT: Final = "CKPT_OBSERVE_DISK_LIMIT"
ENABLED: Final = "CKPT_OBSERVE_ENABLED"
SDK_DISABLED: Final = "OTEL_SDK_DISABLED"
SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
DISABLED_INSTRUMENTATIONS: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
TRACES_SAMPLER: Final = "OTEL_TRACES_SAMPLER"
TRACES_SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
GENAI_EVENTS: Final = "CKPT_OBSERVE_GENAI_EVENTS"
TRACEPARENT: Final = "TRACEPARENT"
OTLP: Final = "OTEL_EXPORTER_OTLP_"
"""Prefix: each of these may also begin with `OTEL_EXPORTER_OTLP_TRACES_`, which goes first."""
OTLP_METRICS_ENDPOINT: Final = OTLP + "METRICS_ENDPOINT"
METRIC_EXPORT_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
LMNR_KEY: Final = "LMNR_PROJECT_API_KEY"
LMNR_BASE_URL: Final = "LMNR_BASE_URL"
LMNR_HTTP_PORT: Final = "LMNR_HTTP_PORT"
PROMETHEUS_HOST: Final = "OTEL_EXPORTER_PROMETHEUS_HOST"
PROMETHEUS_PORT: Final = "OTEL_EXPORTER_PROMETHEUS_PORT"
METRICS_TOKEN: Final = "CKPT_OBSERVE_METRICS_TOKEN"  # noqa: S105 - the name of a variable
METRICS_TLS: Final = "CKPT_OBSERVE_METRICS_TLS"
TEXTFILE: Final = "CKPT_OBSERVE_METRICS_TEXTFILE"
PUSHGATEWAY: Final = "CKPT_OBSERVE_METRICS_PUSHGATEWAY"

FORMER_NAMES: Final = {PAGES_DIR: "CKPT_OBSERVE_RING_DIR", DELIVERY: "CKPT_OBSERVE_DRAIN"}
"""Variables that were renamed. The former name still works, with a warning."""
FORMER_VALUES: Final = {"thread": "in-process", "agent": "daemon"}
"""Values of DELIVERY that were renamed. The former value still works, with a warning."""

VARIABLES: Final = (
    Variable(
        EXPORTERS,
        "exporters",
        "what the process has, and `local`",
        "Comma list of where spans go: `otlp`, `laminar`, `provider` (your own TracerProvider), `local` (the embedded trace store), `console`, `prometheus` (metrics); or `none`. See docs/backends.md.",
    ),
    Variable(DIR, "dir", "$XDG_STATE_HOME/ckpt_observe", "Journals and local store; made with mode 0700."),
    Variable(PAGES_DIR, "pages_dir", "/dev/shm where it is a tmpfs with room, else DIR", "Pages of operations in flight; shared memory."),
    Variable(
        DELIVERY,
        "delivery",
        "in-process",
        "Who brings the records to the exporters: `in-process`, threads of this process; `companion`, a process that the first one starts for all of the state directory; `daemon`, `ckpt-observe daemon`, with exporters of its own. See docs/delivery.md.",
    ),
    Variable(
        DISK_LIMIT,
        "",
        "1024",
        "MiB that ended processes may leave in the state directory, all together, while nobody delivers it. Beyond it the oldest records are dropped, counted, and that is said once. A live process has 256 MiB of its own.",
    ),
    Variable(ENABLED, "enabled", "true", "`false`: the host runs as if we were not there."),
    Variable(SDK_DISABLED, "", "false", "OpenTelemetry's switch; `true` is the same as CKPT_OBSERVE_ENABLED=false."),
    Variable(SERVICE_NAME, "service", "name of the program", "`service.name` of the resource."),
    Variable(RESOURCE_ATTRIBUTES, "", "", "Further resource attributes, `key=value` pairs joined by commas, values percent-encoded."),
    Variable(
        DISABLED_INSTRUMENTATIONS, "", "", "Comma list of libraries that are left alone (`reference`); `ckpt_observe` or `*` for all."
    ),
    Variable(
        TRACES_SAMPLER,
        "",
        "parentbased_always_on",
        "Which traces are recorded: `always_on`, `always_off`, `traceidratio`, or these with `parentbased_`. What is not recorded is in no metric either.",
    ),
    Variable(TRACES_SAMPLER_ARG, "", "1", "Ratio of traces for `traceidratio` and `parentbased_traceidratio`, 0 to 1."),
    Variable(
        GENAI_EVENTS,
        "",
        "false",
        "`true`: saves and restores also have OpenTelemetry's draft events `gen_ai.agent.checkpointed`, `paused` and `resumed`. Their names may change.",
    ),
    Variable(TRACEPARENT, "", "", "W3C trace context that becomes the parent of this program's first span."),
    Variable(
        OTLP + "ENDPOINT",
        "",
        "http://localhost:4318, 4317 for gRPC",
        "Server for `otlp`; `/v1/traces` is appended for HTTP. All of these also as `OTEL_EXPORTER_OTLP_TRACES_*`, which goes first, and whose endpoint is taken as it is.",
    ),
    Variable(OTLP + "PROTOCOL", "", "http/protobuf", "`http/protobuf` or `grpc`."),
    Variable(OTLP + "HEADERS", "", "", "Headers of each request, `key=value` pairs joined by commas, percent-encoded. Never logged."),
    Variable(
        OTLP + "TIMEOUT", "", "10000", "Milliseconds for a request; up to 300 is taken as seconds, as OpenTelemetry's Python SDK does."
    ),
    Variable(OTLP + "COMPRESSION", "", "none", "`gzip` or `none`."),
    Variable(OTLP + "CERTIFICATE", "", "the system's", "File of the authorities to trust."),
    Variable(OTLP + "CLIENT_CERTIFICATE", "", "", "File of the client's certificate, for mutual TLS."),
    Variable(OTLP + "CLIENT_KEY", "", "", "File of its key."),
    Variable(OTLP + "INSECURE", "", "false", "For a gRPC endpoint without `http://` or `https://`: `true` means no TLS."),
    Variable(LMNR_KEY, "", "", "Laminar's project key, for `laminar`. Never logged."),
    Variable(LMNR_BASE_URL, "", "https://api.lmnr.ai", "Laminar's server, where it is your own."),
    Variable(LMNR_HTTP_PORT, "", "that of the URL", "Its HTTP port, such as 8000."),
    Variable(PROMETHEUS_HOST, "", "127.0.0.1", "Where `prometheus` serves `/metrics`. Other than loopback needs a token or TLS."),
    Variable(
        PROMETHEUS_PORT,
        "",
        "9464",
        "The port of it, shared by all processes of one state directory; or `none`, if your program serves the metrics with `PrometheusCollector`.",
    ),
    Variable(METRICS_TOKEN, "", "", "What a scraper must send as `Authorization: Bearer ...`."),
    Variable(METRICS_TLS, "", "", "PEM file with certificate and key: `/metrics` is served by HTTPS."),
    Variable(
        OTLP_METRICS_ENDPOINT,
        "",
        "",
        "URL that `prometheus` also pushes its metrics to by OTLP over HTTP, such as a Collector's `/v1/metrics`.",
    ),
    Variable(METRIC_EXPORT_INTERVAL, "", "60000", "Milliseconds between two such pushes."),
    Variable(TEXTFILE, "", "", "File ending in `.prom` for node_exporter, written instead of serving `/metrics`: for batch jobs."),
    Variable(PUSHGATEWAY, "", "", "URL of a Pushgateway, pushed to instead of serving `/metrics`: for batch jobs."),
)
