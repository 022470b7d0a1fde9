"""Which settings are in force and where each came from; and variables that look like ours and are not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from ckpt_observe import environment
from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from ckpt_observe.config import Settings
from ckpt_observe.endpoints import without_credentials
from ckpt_observe.environment import VARIABLES, Variable
from ckpt_observe.record import redact, trace_context

_PREFIX: Final = "CKPT_OBSERVE_"
_SECRETS: Final = ("HEADERS", "KEY", "TOKEN")
"""Ends of the names of variables whose values are not shown. `CLIENT_KEY` names a file, and is not shown either."""
_ADDRESSES: Final = ("ENDPOINT", "URL", "PUSHGATEWAY")
"""Ends of the names of variables whose values may have a password in them, with `http://` or without."""
_LONGEST: Final = 200


def effective(settings: Settings) -> Iterator[Finding]:
    """Every setting that somebody made, and the defaults of those that are arguments of `observe()`."""
    for row in VARIABLES:
        name, value = _source(row, os.environ)
        origin = settings.origin.get(row.argument or row.name, name if value else "default")
        if row.argument and not (row.argument == "service" and origin == "default"):  # that would be the name of this command
            value = getattr(settings, row.argument)
        if row.argument or origin != "default":
            yield Finding(OK, f"setting {name}", f"{_shown(name, value, row.default)} (from {origin})")
    if not settings.enabled:
        yield Finding(NOTE, "enabled", f"observation is switched off by {settings.origin['enabled']}")
    elif not settings.exporters:
        yield Finding(NOTE, "exporters", f"nothing is exported, so nothing is observed, by {settings.origin['exporters']}")
    if settings.traceparent and trace_context.parse_traceparent(settings.traceparent) is None:
        yield Finding(PROBLEM, environment.TRACEPARENT, "is no W3C trace context (00-<trace>-<span>-<flags>), and has no effect")


def misspelt(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A variable that nobody reads has no effect, and nobody says so at run time."""
    suffixes = [row.name.removeprefix(_PREFIX) for row in VARIABLES if row.name.startswith(_PREFIX)]
    renamed = {former: name for name, former in environment.FORMER_NAMES.items()}
    for name in sorted(environ):
        rest = name.removeprefix(_PREFIX)
        if name in renamed:
            effect = f"ignored, because {renamed[name]} is set" if environ.get(renamed[name]) else "still works"
            yield Finding(NOTE, name, f"was renamed to {renamed[name]}; {effect}")
        elif rest != name and rest not in suffixes:
            near = get_close_matches(rest, suffixes, 1)
            hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
            yield Finding(PROBLEM if near else NOTE, name, f"there is no such setting{hint}")


def _source(row: Variable, environ: Mapping[str, str]) -> tuple[str, str]:
    """The variable that a setting comes from, and what it says: for OTLP the one for traces goes first."""
    special = row.name.replace(environment.OTLP, f"{environment.OTLP}TRACES_")
    name = special if environ.get(special) else row.name
    return name, environ.get(name, "")


def _shown(name: str, value: Any, default: str) -> str:
    if name.endswith(_SECRETS):
        return "set, not shown"
    if name == environment.RESOURCE_ATTRIBUTES:
        value = redact.text(str(value))
    if value is None or value == "":
        return default
    text = ", ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    return (without_credentials(text) if name.endswith(_ADDRESSES) else text)[:_LONGEST]
