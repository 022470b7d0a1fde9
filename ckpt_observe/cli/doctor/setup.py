"""Checks of the setup: versions, settings and their origin, misspelt variables, and which callables can be patched."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ckpt_observe import environment, libraries, resource_detectors
from ckpt_observe.cli.doctor import NOTE, OK, PROBLEM, Diagnosis
from ckpt_observe.config import WINDOWS, Settings
from ckpt_observe.endpoints import without_credentials
from ckpt_observe.environment import VARIABLES, Variable
from ckpt_observe.instrument import registry
from ckpt_observe.instrument.coverage import MARK_CALLS, NOT_INSTRUMENTED
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.targets import STATES, installed_version
from ckpt_observe.record import redact, trace_context, trace_state
from ckpt_observe.setting_source import unknown_variables
from ckpt_observe.support import entry_points
from ckpt_observe.support.parsing import quote

_PACKAGES: Final = (
    "ckpt-observe", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-instrumentation", "wrapt", "msgspec", "grpcio",
    "prometheus-client", "lmnr",
)  # fmt: skip
_SECRET_SUFFIXES: Final = ("HEADERS", "KEY", "TOKEN")
"""Variables whose values are not printed. `CLIENT_KEY` only names a file, but is not printed either."""
_URL_SUFFIXES: Final = ("ENDPOINT", "URL", "PUSHGATEWAY")
"""Variables whose values may contain a password, with or without `http://`."""
_MAX_LENGTH: Final = 200
_PLAIN_FILES: Final = (
    "pages are plain files in the state directory, because there is no /dev/shm; they survive the death of the process, but each line of "
    "an operation is a system call. CPU time and memory of operations are not recorded"
)


def check_versions() -> Iterator[Diagnosis]:
    """Report the versions of Python and of the packages that matter."""
    versions = ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name)))
    yield Diagnosis(OK, "versions", f"Python {platform.python_version()}, {versions}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_platform() -> Iterator[Diagnosis]:
    """Report what the platform lacks. On Linux nothing is reported."""
    name: str = sys.platform  # mypy checks a comparison of `sys.platform` itself for one platform only
    if name == "win32":
        yield Diagnosis(PROBLEM, "platform", f"nothing is recorded: {WINDOWS}")
    elif name != "linux":
        yield Diagnosis(NOTE, "platform", f"{name}: {_PLAIN_FILES}")


def check_settings(settings: Settings) -> Iterator[Diagnosis]:
    """Report every setting that was set, the defaults of arguments of `observe()`, and settings that turn recording off or are invalid."""
    for row in VARIABLES:
        name, value = _source(row, os.environ)
        origin = settings.origin.get(row.argument or row.name, name if value else "default")
        if row.argument and not (row.argument == "service" and origin == "default"):  # the default would be the name of this command
            value = getattr(settings, row.argument)
        if row.argument or origin != "default":
            yield Diagnosis(OK, f"setting {name}", f"{_display(name, value, row.default)} (from {origin})")
    if not settings.enabled:
        yield Diagnosis(NOTE, "enabled", f"recording is turned off by {settings.origin['enabled']}")
    elif not settings.exporters:
        yield Diagnosis(NOTE, "exporters", f"all exporters are turned off by {settings.origin['exporters']}, so nothing is recorded")
    if note := settings.sampler.note(is_counted=settings.counts_unsampled, exports_failures=settings.unsampled_failures):
        yield Diagnosis(NOTE, "sampling", note)
    if settings.traceparent and trace_context.parse_traceparent(settings.traceparent) is None:
        yield Diagnosis(PROBLEM, environment.TRACEPARENT, "not a valid W3C trace context (00-<trace ID>-<span ID>-<flags>); it is ignored")
    if settings.tracestate and not trace_state.parse_header(settings.tracestate):
        yield Diagnosis(PROBLEM, environment.TRACESTATE, "not a valid W3C tracestate (key=value pairs separated by commas); it is ignored")
    yield from _check_resource_detectors(settings.resource_detectors)
    if settings.laminar_context and trace_context.parse_laminar_context(settings.laminar_context) is None:
        yield Diagnosis(PROBLEM, environment.LMNR_SPAN_CONTEXT, "not a span context of Laminar's SDK; it is ignored")


def _check_resource_detectors(names: Sequence[str]) -> Iterator[Diagnosis]:
    installed = entry_points.names(resource_detectors.GROUP) if names else []
    for name in names:
        if name not in (*installed, resource_detectors.ALL):
            yield Diagnosis(
                PROBLEM, environment.RESOURCE_DETECTORS, f"no installed package provides the detector {quote(name)}; it is ignored"
            )


def check_variable_names(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Report variables with our prefix that were renamed or do not exist. Programs log a warning about them, too."""
    new_names = {former: name for name, former in environment.FORMER_NAMES.items()}
    for name in sorted(new_names.keys() & environ.keys()):
        new_name = new_names[name]
        effect = f"ignored, because {new_name} is set" if environ.get(new_name) else "still works"
        yield Diagnosis(NOTE, name, f"was renamed to {new_name}; {effect}")
    for name, similar in unknown_variables(environ).items():
        hint = f"; did you mean {similar}?" if similar else ""
        yield Diagnosis(PROBLEM if similar else NOTE, name, f"no such setting{hint}")


def _source(row: Variable, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable for a setting, and its value or an empty string. For OTLP, the variable for traces takes precedence."""
    traces_name = row.name.replace(environment.OTLP, f"{environment.OTLP}TRACES_")
    name = traces_name if environ.get(traces_name) else row.name
    return name, environ.get(name, "")


def _display(name: str, value: Any, default: str) -> str:
    if name.endswith(_SECRET_SUFFIXES):
        return "set, not shown"
    if name == environment.RESOURCE_ATTRIBUTES:
        value = redact.text(str(value))
    if value is None or value == "":
        return default
    text = ", ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    return (without_credentials(text) if name.endswith(_URL_SUFFIXES) else text)[:_MAX_LENGTH]


def check_patches(settings: Settings) -> Iterator[Diagnosis]:
    """Import and patch each library, report which callables can be patched, and remove the patches."""
    disabled = settings.disabled_instrumentations
    for name in libraries.names():
        instrumentor = registry.load(name)
        if instrumentor is None:
            yield Diagnosis(PROBLEM, f"patches {name}", "the instrumentor cannot be loaded; the log says why")
        elif not registry.create_all([name], disabled):
            yield Diagnosis(NOTE, f"patches {name}", f"disabled by {environment.DISABLED_INSTRUMENTATIONS}={','.join(sorted(disabled))}")
        elif name not in settings.libraries:
            yield Diagnosis(NOTE, f"patches {name}", f"not selected; {environment.LIBRARIES}=default,+{name} observes it")
        else:
            yield from _check_instrumentor(name, instrumentor)


def check_other_libraries(_settings: Settings) -> Iterator[Diagnosis]:
    """Report well-known checkpoint libraries that are installed and have no instrumentor."""
    for library in libraries.uninstrumented_libraries().values():
        if any(_is_installed(module) for module in library.modules):
            yield Diagnosis(NOTE, f"library {library.title}", f"installed, but {NOT_INSTRUMENTED}: {MARK_CALLS} (docs/own-code.md)")


def _is_installed(module: str) -> bool:
    with suppress(ImportError, ValueError, AttributeError):  # of the parent package, or a module without a specification
        return importlib.util.find_spec(module) is not None
    return False


def _check_instrumentor(name: str, instrumentor: Instrumentor) -> Iterator[Diagnosis]:
    subject = f"patches {name}"
    try:
        __import__(instrumentor.library)
    except Exception as error:  # Keras, for example, imports the backend that a setting of the program selects
        if isinstance(error, ModuleNotFoundError) and not _is_installed(instrumentor.library):
            yield Diagnosis(OK, subject, f"{instrumentor.package or instrumentor.library} is not installed")
        else:
            yield Diagnosis(NOTE, subject, f"{instrumentor.library} cannot be imported here: {type(error).__name__}: {error}"[:_MAX_LENGTH])
        return
    for module in instrumentor.modules():
        with suppress(ImportError):  # reported below
            importlib.import_module(module)
    instrumentor.instrument()
    rows = instrumentor.report()
    instrumentor.uninstrument()
    version = f"{instrumentor.package} {installed_version(instrumentor.package)}: " if instrumentor.package else ""
    totals = Counter(row.state for row in rows)
    states = ", ".join(f"{totals[state]} {state}" for state in STATES if totals[state])
    yield Diagnosis(OK, subject, version + (states or "nothing to patch"))
    required = tuple(row.name for row in instrumentor.rows() if row.required)
    for row in rows:
        if row.state in ("renamed", "failed"):
            yield Diagnosis(PROBLEM if row.target.startswith(required) else NOTE, row.target, f"{row.state}: {row.detail}")
