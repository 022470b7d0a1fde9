"""Limits for attributes, events and links of spans, from the same variables as those of OpenTelemetry's SDK. Exporters apply them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ckpt_observe import environment
from ckpt_observe.support.parsing import parse_number

DEFAULT_COUNT: Final = 128


class SpanLimits(NamedTuple):
    """The largest numbers of attributes, events and links, and the largest length of a text; a length of None is no limit."""

    attributes: int = DEFAULT_COUNT
    attribute_length: int | None = None
    events: int = DEFAULT_COUNT
    event_attributes: int = DEFAULT_COUNT
    links: int = DEFAULT_COUNT
    link_attributes: int = DEFAULT_COUNT
    length: int | None = None
    """The largest length of a text in events and links."""


def read(environ: Mapping[str, str]) -> SpanLimits:
    """Return the limits that the environment sets. Raise ConfigError if one is not a number."""
    count = _read(environ, environment.ATTRIBUTE_COUNT_LIMIT)
    length = _read(environ, environment.ATTRIBUTE_VALUE_LENGTH_LIMIT)
    span_length = _read(environ, environment.SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT)
    return SpanLimits(
        attributes=_first(_read(environ, environment.SPAN_ATTRIBUTE_COUNT_LIMIT), count),
        attribute_length=length if span_length is None else span_length,
        events=_first(_read(environ, environment.SPAN_EVENT_COUNT_LIMIT)),
        event_attributes=_first(_read(environ, environment.EVENT_ATTRIBUTE_COUNT_LIMIT), count),
        links=_first(_read(environ, environment.SPAN_LINK_COUNT_LIMIT)),
        link_attributes=_first(_read(environ, environment.LINK_ATTRIBUTE_COUNT_LIMIT), count),
        length=length,
    )


def _first(*counts: int | None) -> int:
    return next((count for count in counts if count is not None), DEFAULT_COUNT)


def _read(environ: Mapping[str, str], variable: str) -> int | None:
    value = environ.get(variable, "").strip()
    return parse_number(variable, value, "a number; use an integer from 0 on", smallest=0) if value else None
