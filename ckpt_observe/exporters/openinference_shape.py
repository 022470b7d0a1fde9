"""Adds the attributes of OpenInference to spans, so that Arize Phoenix and MLflow show them with a kind, an input and an output.

Without them, each span is of unknown kind (grey) and its page is empty (Phoenix 20.26, MLflow 3.17). Both ignore the rest of the
attributes in lists and previews, but show them with the span. MLflow needs none of its own attributes, because it translates these.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ckpt_observe.exporters.input_output import span_input, span_output, summary, to_json
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import openinference
from ckpt_observe.span import Span


def shape(span: Span) -> Span:
    """Return the span with its kind, input and output. Attributes that it already has are kept."""
    return structs.replace(span, attributes={**_shown_attributes(span), **span.attributes})


def _shown_attributes(span: Span) -> dict[str, Any]:
    """Return the kind: TOOL for operations, because these pages list calls of tools, and CHAIN for tasks and phases; input and output."""
    return {
        openinference.SPAN_KIND: openinference.TOOL if names.OPERATION in span.attributes else openinference.CHAIN,
        openinference.INPUT: to_json(span_input(span)),
        openinference.INPUT_TYPE: openinference.JSON,
        openinference.OUTPUT: to_json({**summary(span), **span_output(span)}),
        openinference.OUTPUT_TYPE: openinference.JSON,
    }
