"""The resource: what spans and metrics say about the process, the service or the host they come from, with OpenTelemetry's names.

`telemetry.sdk.name` is ours: the specification reserves `opentelemetry` for OpenTelemetry's own SDK, which does not create these spans.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from typing import Any, Final

from ckpt_observe import __version__
from ckpt_observe.config import SERVICE_ATTRIBUTE, Settings
from ckpt_observe.record import redact
from ckpt_observe.semconv.spans import SCOPE

SDK: Final = {"telemetry.sdk.language": "python", "telemetry.sdk.name": SCOPE, "telemetry.sdk.version": __version__}
_PROCESS_PREFIX: Final = "process."


def new_instance_id() -> str:
    """Return a new `service.instance.id`. Every process has its own."""
    return str(uuid.UUID(bytes=os.urandom(16), version=4))


def process_resource(settings: Settings, instance_id: str, detected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource attributes of this process. `detected` is what resource detectors found; settings have precedence."""
    attributes = {"service.instance.id": instance_id, "host.name": socket.gethostname(), **_service_resource(settings, detected)}
    return {**attributes, "process.pid": os.getpid(), **redact.attributes(settings.resource)}


def metrics_resource(settings: Settings, detected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource attributes of metrics, which are those of all processes of a state directory: without the process itself."""
    attributes = {key: value for key, value in detected.items() if not key.startswith(_PROCESS_PREFIX)}
    return {**_service_resource(settings, attributes), **redact.attributes(settings.resource)}


def _service_resource(settings: Settings, detected: Mapping[str, Any]) -> dict[str, Any]:
    service = {SERVICE_ATTRIBUTE: redact.name(settings.service)}
    if settings.origin.get("service") == "default":  # the name of the program: a detector may know a better one
        return {**service, **detected, **SDK}
    return {**detected, **service, **SDK}
