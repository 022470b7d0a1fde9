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
RING_DIR: Final = "CKPT_OBSERVE_RING_DIR"
DRAIN: Final = "CKPT_OBSERVE_DRAIN"
ENABLED: Final = "CKPT_OBSERVE_ENABLED"
SDK_DISABLED: Final = "OTEL_SDK_DISABLED"
SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
DISABLED_INSTRUMENTATIONS: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
TRACEPARENT: Final = "TRACEPARENT"

VARIABLES: Final = (
    Variable(EXPORTERS, "exporters", "local", "Comma list of where spans go: `local` (the embedded trace store), `console`; or `none`."),
    Variable(DIR, "dir", "$XDG_STATE_HOME/ckpt_observe", "Journals and local store; made with mode 0700."),
    Variable(RING_DIR, "ring_dir", "/dev/shm where it is a tmpfs with room, else DIR", "Pages of operations in flight; shared memory."),
    Variable(DRAIN, "drain", "thread", "Who brings the records to the sinks: `thread`, a daemon thread of this process."),
    Variable(ENABLED, "enabled", "true", "`false`: the host runs as if we were not there."),
    Variable(SDK_DISABLED, "", "false", "OpenTelemetry's switch; `true` is the same as CKPT_OBSERVE_ENABLED=false."),
    Variable(SERVICE_NAME, "service", "name of the program", "`service.name` of the resource."),
    Variable(RESOURCE_ATTRIBUTES, "", "", "Further resource attributes, `key=value` pairs joined by commas, values percent-encoded."),
    Variable(DISABLED_INSTRUMENTATIONS, "", "", "Comma list of libraries that are left alone (`reference`), or `*` for all."),
    Variable(TRACEPARENT, "", "", "W3C trace context that becomes the parent of this program's first span."),
)
