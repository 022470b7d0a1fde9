"""Attributes of OpenInference, which Arize Phoenix and MLflow show: https://github.com/Arize-ai/openinference/tree/main/spec."""

from __future__ import annotations

from typing import Final

SPAN_KIND: Final = "openinference.span.kind"
CHAIN: Final = "CHAIN"
TOOL: Final = "TOOL"
INPUT: Final = "input.value"
INPUT_TYPE: Final = "input.mime_type"
OUTPUT: Final = "output.value"
OUTPUT_TYPE: Final = "output.mime_type"
JSON: Final = "application/json"
