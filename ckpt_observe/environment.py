"""Every environment variable that the package reads. The tables of docs/semconv.md are generated from here."""

from __future__ import annotations

from typing import Final, NamedTuple


class Variable(NamedTuple):
    """One environment variable and the argument of `observe()` that overrides it."""

    name: str
    argument: str
    default: str
    meaning: str


PREFIX: Final = "CKPT_OBSERVE_"
"""Of our own variables."""
EXPORTERS: Final = "CKPT_OBSERVE_EXPORTERS"
LIBRARIES: Final = "CKPT_OBSERVE_LIBRARIES"
DIR: Final = "CKPT_OBSERVE_DIR"
PAGES_DIR: Final = "CKPT_OBSERVE_PAGES_DIR"
DELIVERY: Final = "CKPT_OBSERVE_DELIVERY"
DISK_LIMIT: Final = "CKPT_OBSERVE_DISK_LIMIT"
TRACE_DAYS: Final = "CKPT_OBSERVE_TRACE_DAYS"
TRACE_LIMIT: Final = "CKPT_OBSERVE_TRACE_LIMIT"
ENABLED: Final = "CKPT_OBSERVE_ENABLED"
SDK_DISABLED: Final = "OTEL_SDK_DISABLED"
SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
RESOURCE_DETECTORS: Final = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
DISABLED_INSTRUMENTATIONS: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
TRACES_SAMPLER: Final = "OTEL_TRACES_SAMPLER"
TRACES_SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
ATTRIBUTE_COUNT_LIMIT: Final = "OTEL_ATTRIBUTE_COUNT_LIMIT"
ATTRIBUTE_VALUE_LENGTH_LIMIT: Final = "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"
SPAN_ATTRIBUTE_COUNT_LIMIT: Final = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT: Final = "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT"
SPAN_EVENT_COUNT_LIMIT: Final = "OTEL_SPAN_EVENT_COUNT_LIMIT"
EVENT_ATTRIBUTE_COUNT_LIMIT: Final = "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT"
SPAN_LINK_COUNT_LIMIT: Final = "OTEL_SPAN_LINK_COUNT_LIMIT"
LINK_ATTRIBUTE_COUNT_LIMIT: Final = "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"
LIMITS: Final = (
    ATTRIBUTE_COUNT_LIMIT, ATTRIBUTE_VALUE_LENGTH_LIMIT, SPAN_ATTRIBUTE_COUNT_LIMIT, SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT,
    SPAN_EVENT_COUNT_LIMIT, EVENT_ATTRIBUTE_COUNT_LIMIT, SPAN_LINK_COUNT_LIMIT, LINK_ATTRIBUTE_COUNT_LIMIT,
)  # fmt: skip
"""Limits of spans: see `span_limits`."""
GENAI_EVENTS: Final = "CKPT_OBSERVE_GENAI_EVENTS"
OPENINFERENCE: Final = "CKPT_OBSERVE_OPENINFERENCE"
TENSOR_DIGESTS: Final = "CKPT_OBSERVE_TENSOR_DIGESTS"
UNSAMPLED_FAILURES: Final = "CKPT_OBSERVE_UNSAMPLED_FAILURES"
TRACEPARENT: Final = "TRACEPARENT"
TRACESTATE: Final = "TRACESTATE"
RUN_OPTIONS: Final = "_CKPT_OBSERVE_RUN_OPTIONS"
"""Not a setting: the arguments of `observe()`, separated by commas, that options of `ckpt-observe run` override."""
RUN_PID: Final = "_CKPT_OBSERVE_RUN_PID"
"""Not a setting: `ckpt-observe run` tells its program that it is the one that prints a summary at exit."""
OTLP: Final = "OTEL_EXPORTER_OTLP_"
"""Prefix of several variables. Each may also start with `OTEL_EXPORTER_OTLP_TRACES_`, which takes precedence."""
OTLP_METRICS_ENDPOINT: Final = OTLP + "METRICS_ENDPOINT"
METRIC_EXPORT_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
LMNR_KEY: Final = "LMNR_PROJECT_API_KEY"
LMNR_SPAN_CONTEXT: Final = "LMNR_SPAN_CONTEXT"
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
FORMER_VALUES: Final = {DELIVERY: {"thread": "in-process", "agent": "daemon"}}
"""Values that were renamed, by variable. The former value still works, with a warning."""

# fmt: off
VARIABLES: Final = (
    Variable(EXPORTERS, "exporters", "the backends that are configured, and `local`", "Exporters, separated by commas: `otlp`, `laminar`, `provider` (your own TracerProvider), `local` (the embedded trace store), `console`, `prometheus` (metrics); or `none`. `+name` adds one to the default and `-name` removes one, as in `+prometheus`. See docs/backends.md."),
    Variable(LIBRARIES, "libraries", "default", "Libraries to observe, separated by commas. `default` is all that write nothing but checkpoints; `+name` adds one and `-name` removes one, as in `default,+joblib,-langgraph`; or `none`. See docs/libraries.md."),
    Variable(DIR, "dir", "$XDG_STATE_HOME/ckpt_observe, else ~/.local/state/ckpt_observe", "State directory for journals and the local store. Created with mode 0700."),
    Variable(PAGES_DIR, "pages_dir", "/dev/shm if it is a tmpfs with free space, else DIR. In a container whose DIR is on a volume: DIR, because /dev/shm ends with the container", "Directory for the pages of running operations. Should be shared memory. When it is full, further pages are in DIR."),
    Variable(DELIVERY, "delivery", "in-process", "Which process sends records to the exporters: `in-process`, threads of the host program; `companion`, a process that is started on demand and shared by all processes of the state directory; `daemon`, `ckpt-observe daemon`, which has its own exporters. See docs/delivery.md."),
    Variable(DISK_LIMIT, "", "1024", "MiB that ended processes may leave in the state directory, in total, while nobody delivers them. Beyond it the oldest records are dropped and counted, with one warning. A live process may use another 256 MiB."),
    Variable(TRACE_DAYS, "", "30", "Days for which `local` keeps traces after their last operation; 0 for ever. `ckpt-observe doctor` shows what was removed."),
    Variable(TRACE_LIMIT, "", "1024", "MiB that the store of `local` may use; 0 without limit. Beyond it the oldest traces are removed. If programs that share a state directory differ, the lower limits apply."),
    Variable(ENABLED, "enabled", "true", "`false` turns observation off: nothing is patched, started or written."),
    Variable(SDK_DISABLED, "", "false", "OpenTelemetry's switch. `true` has the same effect as CKPT_OBSERVE_ENABLED=false."),
    Variable(SERVICE_NAME, "service", "name of the program", "`service.name` of the resource."),
    Variable(RESOURCE_ATTRIBUTES, "", "", "Further resource attributes: `key=value` pairs separated by commas, values percent-encoded."),
    Variable(RESOURCE_DETECTORS, "", "", "OpenTelemetry's resource detectors, separated by commas, such as `process,os,host`; `*` for all that are installed. They run in threads with the first operation; delivery waits for them, at most 5 s. One that fails or is too slow is left out, with a warning."),
    Variable(DISABLED_INSTRUMENTATIONS, "", "", "Libraries that are not instrumented, separated by commas (such as `reference`); `ckpt_observe` or `*` for all."),
    Variable(TRACES_SAMPLER, "", "parentbased_always_on", "Which traces are sampled, so that their spans are exported: `always_on`, `always_off`, `traceidratio`, or one of these with the prefix `parentbased_`. Metrics count every operation, sampled or not."),
    Variable(TRACES_SAMPLER_ARG, "", "1", "Ratio of sampled traces, from 0 to 1, for `traceidratio` and `parentbased_traceidratio`."),
    Variable(UNSAMPLED_FAILURES, "", "false", "`true` exports failed and interrupted operations as spans even if their trace is not sampled."),
    Variable(ATTRIBUTE_COUNT_LIMIT, "", "128", "Attributes of a span, event or link that `otlp` and `laminar` send. The rest is dropped and counted, outcome and error last. The local store and metrics have all of them; `provider` has the limits of your TracerProvider."),
    Variable(ATTRIBUTE_VALUE_LENGTH_LIMIT, "", "no limit", "Characters of a text in attributes that `otlp` and `laminar` send. No text has more than 2000 in any case."),
    Variable(SPAN_ATTRIBUTE_COUNT_LIMIT, "", "OTEL_ATTRIBUTE_COUNT_LIMIT", "The same for attributes of spans only."),
    Variable(SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT, "", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "The same for attributes of spans only."),
    Variable(SPAN_EVENT_COUNT_LIMIT, "", "128", "Events of a span that `otlp` and `laminar` send. Of more events, the last ones are sent."),
    Variable(EVENT_ATTRIBUTE_COUNT_LIMIT, "", "OTEL_ATTRIBUTE_COUNT_LIMIT", "Attributes of an event."),
    Variable(SPAN_LINK_COUNT_LIMIT, "", "128", "Links of a span that `otlp` and `laminar` send. Of more links, the last ones are sent."),
    Variable(LINK_ATTRIBUTE_COUNT_LIMIT, "", "OTEL_ATTRIBUTE_COUNT_LIMIT", "Attributes of a link."),
    Variable(GENAI_EVENTS, "", "false", "`true` adds OpenTelemetry's draft events `gen_ai.agent.checkpointed`, `paused` and `resumed` to the spans of saves and restores. Their names may change."),
    Variable(OPENINFERENCE, "", "true if the server is recognized as Phoenix or MLflow", "`true` adds kind, input and output of OpenInference to the spans of `otlp` and `provider`, for the pages of Arize Phoenix and MLflow. Recognized are port 6006, the headers `x-project-name` and `x-mlflow-experiment-id`, and the resource attribute `openinference.project.name`."),
    Variable(TENSOR_DIGESTS, "", "false", "`true` digests a sample of each tensor in memory of the CPU, at most 4 KiB, in saves and loads of torch and safetensors, so that a load which returns other content names the tensors. Takes some 20 to 50 µs per tensor. Tensors on other devices are not read, because that would wait for them."),
    Variable(TRACEPARENT, "", "", "W3C trace context of the process that started this one: the parent of each span that would else be the root of a trace."),
    Variable(TRACESTATE, "", "", "W3C `tracestate` that belongs to TRACEPARENT. Our spans keep it."),
    Variable(OTLP + "ENDPOINT", "", "http://localhost:4318, 4317 for gRPC", "Server for `otlp`. For HTTP, `/v1/traces` is appended. Each of these variables also exists as `OTEL_EXPORTER_OTLP_TRACES_*`, which takes precedence; nothing is appended to its endpoint."),
    Variable(OTLP + "PROTOCOL", "", "http/protobuf", "`http/protobuf` or `grpc`."),
    Variable(OTLP + "HEADERS", "", "", "Headers of each request: `key=value` pairs separated by commas, percent-encoded. Never logged."),
    Variable(OTLP + "TIMEOUT", "", "10000", "Milliseconds for a request. A value up to 300 means seconds, as in OpenTelemetry's Python SDK."),
    Variable(OTLP + "COMPRESSION", "", "none", "`gzip` or `none`."),
    Variable(OTLP + "CERTIFICATE", "", "the system's", "File with the certificate authorities to trust."),
    Variable(OTLP + "CLIENT_CERTIFICATE", "", "", "File with the client certificate, for mutual TLS."),
    Variable(OTLP + "CLIENT_KEY", "", "", "File with the key of the client certificate."),
    Variable(OTLP + "INSECURE", "", "false", "`true` disables TLS for a gRPC endpoint without `http://` or `https://`."),
    Variable(LMNR_KEY, "", "", "Project API key for `laminar`. Never logged."),
    Variable(LMNR_SPAN_CONTEXT, "", "", "Span context of the process that started this one, as Laminar's SDK serializes it: like TRACEPARENT, with path, session and user."),
    Variable(LMNR_BASE_URL, "", "https://api.lmnr.ai", "URL of a self-hosted Laminar server."),
    Variable(LMNR_HTTP_PORT, "", "the port of the URL", "HTTP port of a self-hosted Laminar server, such as 8000."),
    Variable(PROMETHEUS_HOST, "", "127.0.0.1", "Address on which `prometheus` serves `/metrics`. Any address other than loopback requires a token or TLS."),
    Variable(PROMETHEUS_PORT, "", "9464", "Port of `/metrics`, shared by all processes of a state directory; or `none` if your program serves the metrics with `PrometheusCollector`."),
    Variable(METRICS_TOKEN, "", "", "Token that a scraper must send as `Authorization: Bearer ...`."),
    Variable(METRICS_TLS, "", "", "PEM file with certificate and key, to serve `/metrics` over HTTPS."),
    Variable(OTLP_METRICS_ENDPOINT, "", "", "URL to which `prometheus` also pushes its metrics with OTLP over HTTP, such as `/v1/metrics` of an OTel Collector."),
    Variable(METRIC_EXPORT_INTERVAL, "", "60000", "Milliseconds between two pushes of metrics with OTLP."),
    Variable(TEXTFILE, "", "", "File ending in `.prom` for node_exporter, written instead of serving `/metrics`. For batch jobs."),
    Variable(PUSHGATEWAY, "", "", "URL of a Pushgateway, used instead of serving `/metrics`. For batch jobs."),
)
# fmt: on
