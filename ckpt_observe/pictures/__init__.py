"""Draws operations: a timeline as text, SVG or HTML, and a report about a trace as one HTML file. Pure functions: reads no file.

| module | subject |
|---|---|
| `time_scale` | where a moment is in a picture; long times without an operation are folded |
| `timeline` | lanes and bars of a timeline, and the timeline as text |
| `timeline_svg` | the timeline as SVG |
| `markup` | XML and HTML elements, whose text is always escaped, and the page around them |
| `redaction` | what a report leaves out |
| `report` | the report |
"""

from __future__ import annotations

from ckpt_observe.pictures.report import report_page
from ckpt_observe.pictures.timeline import Timeline, build_timeline, timeline_text
from ckpt_observe.pictures.timeline_svg import timeline_page, timeline_svg

__all__ = ["Timeline", "build_timeline", "report_page", "timeline_page", "timeline_svg", "timeline_text"]
