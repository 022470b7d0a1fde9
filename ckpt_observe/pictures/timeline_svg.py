"""The timeline as SVG, alone or in an HTML page with the same facts as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from xml.etree.ElementTree import Element

from ckpt_observe.pictures.markup import STYLE, add, add_table, create_page, page_text, svg_text
from ckpt_observe.pictures.time_scale import Piece, TimeScale
from ckpt_observe.pictures.timeline import MEANINGS, SYMBOLS, Bar, Timeline
from ckpt_observe.support.formatting import format_duration, format_time

_WIDTH: Final = 1200
_MARGIN: Final = 8
_CHARACTER: Final = 6.8
"""Width of a character."""
_MAX_LABEL: Final = 36
_ROW: Final = 18
_BAR: Final = 12
_AXIS: Final = 34
_FOLD: Final = 56.0
_MIN_BAR: Final = 2.0
_MAX_ROWS: Final = 8
"""Rows of a lane. Operations that run at the same time have rows of their own, until there are so many."""


def timeline_svg(timeline: Timeline, title: str) -> str:
    """Return the timeline as an SVG file."""
    svg = draw_timeline(timeline, title)
    svg.set("xmlns", "http://www.w3.org/2000/svg")
    style = Element("style")
    style.text = STYLE
    svg.insert(0, style)
    return svg_text(svg)


def timeline_page(timeline: Timeline, title: str) -> str:
    """Return the timeline as an HTML file, with a table for those who cannot see the picture."""
    page, body = create_page(title)
    body.append(draw_timeline(timeline, title))
    add(body, "h2", "Operations")
    header = ("Start", "Lane", "Operation", "Trace", "Span")
    rows = ((format_time(bar.start_unix_nano), bar.lane, bar.describe(), bar.trace_id, bar.span_id) for bar in timeline.bars)
    add_table(body, header, rows)
    return page_text(page)


def draw_timeline(timeline: Timeline, title: str) -> Element:
    """Return the picture as an element, for a page or a file."""
    label_width = _CHARACTER * min(max(map(len, timeline.lanes), default=0), _MAX_LABEL) + 2 * _MARGIN
    scale = timeline.scale(_WIDTH - label_width - 3 * _MARGIN, _FOLD)
    lanes = {lane: _pack(bars, scale) for lane, bars in timeline.lanes.items()}
    height = _AXIS + sum(_ROW * max(row for _, row in bars) + _ROW + 4 for bars in lanes.values()) + 2 * _ROW
    svg = Element("svg", {"viewBox": f"0 0 {_WIDTH} {height}", "width": str(_WIDTH), "height": str(height), "role": "img"})
    add(svg, "title", title)
    pattern = add(add(svg, "defs"), "pattern", id="hatch", width=6, height=6, patternUnits="userSpaceOnUse", patternTransform="rotate(45)")
    add(pattern, "line", class_="hatch", x1=0, y1=0, x2=0, y2=6)
    y = _AXIS
    for lane, bars in lanes.items():
        lane_height = _ROW * (max(row for _, row in bars) + 1)
        add(svg, "rect", class_="lane", x=0, y=y, width=_WIDTH, height=lane_height)
        label = add(svg, "text", lane if len(lane) <= _MAX_LABEL else f"{lane[: _MAX_LABEL - 1]}…", x=_MARGIN, y=y + 13)
        add(label, "title", lane)
        for bar, row in bars:
            _draw_bar(svg, bar, scale, label_width, y + row * _ROW + 3)
        y += lane_height + 4
    for piece in scale.pieces:
        _draw_piece(svg, piece, label_width, y)
    _draw_legend(svg, timeline, label_width, y + _ROW)
    return svg


def _pack(bars: Sequence[Bar], scale: TimeScale) -> list[tuple[Bar, int]]:
    """Return each bar with its row: the first one that is free."""
    ends: list[float] = []
    packed = []
    for bar in bars:
        start = scale.position(bar.start_unix_nano)
        row = next((number for number, end in enumerate(ends) if end <= start), len(ends))
        row = min(row, _MAX_ROWS - 1)
        end = max(scale.position(bar.end_unix_nano), start + _MIN_BAR)
        if row == len(ends):
            ends.append(end)
        else:
            ends[row] = max(end, ends[row])
        packed.append((bar, row))
    return packed


def _draw_bar(svg: Element, bar: Bar, scale: TimeScale, offset: float, y: float) -> None:
    x, end = offset + scale.position(bar.start_unix_nano), offset + scale.position(bar.end_unix_nano)
    width = max(end - x, _MIN_BAR)
    group = add(svg, "g")
    add(group, "title", bar.describe())
    outcome = bar.outcome if bar.outcome in SYMBOLS else "ok"
    add(group, "rect", class_=outcome, x=_number(x), y=_number(y), width=_number(width), height=_BAR, rx=1)
    for phase in bar.phases:
        start, stop = (offset + scale.position(moment) for moment in (phase.start_unix_nano, phase.end_unix_nano))
        if stop - start >= 2 * _MIN_BAR:
            place = add(group, "rect", class_="phase", x=_number(start), y=_number(y), width=_number(stop - start), height=_BAR)
            add(place, "title", f"{phase.name}: {format_duration((phase.end_unix_nano - phase.start_unix_nano) / 1e9)}")
    if outcome != "ok":
        add(group, "text", SYMBOLS[outcome], class_="mark", x=_number(x + width + 1), y=_number(y + 10))


def _draw_piece(svg: Element, piece: Piece, offset: float, bottom: float) -> None:
    """Draw a part of the time axis: a folded gap with its length, or the time at which the part begins."""
    x = offset + piece.x
    if piece.is_folded:
        add(svg, "rect", class_="fold", x=_number(x + piece.width / 2 - 1), y=_AXIS - 8, width=2, height=_number(bottom - _AXIS + 8))
        text = format_duration(piece.seconds)
        if piece.width >= _CHARACTER * len(text):
            middle = _number(x + piece.width / 2)
            add(svg, "text", text, class_="soft", x=middle, y=_AXIS - 12, text_anchor="middle")
        return
    clock = datetime.fromtimestamp(piece.start / 1e9).astimezone().strftime("%H:%M:%S")
    if piece.x == 0 or piece.width >= _CHARACTER * (len(clock) + 1):
        add(svg, "text", clock, class_="soft", x=_number(x), y=12)


def _draw_legend(svg: Element, timeline: Timeline, offset: float, y: float) -> None:
    x = offset
    for outcome in timeline.outcomes():
        text = MEANINGS[outcome] if outcome == "ok" else f"{SYMBOLS[outcome]} {MEANINGS[outcome]}"
        add(svg, "rect", class_=outcome, x=_number(x), y=_number(y - 10), width=14, height=10)
        add(svg, "text", text, x=_number(x + 20), y=_number(y))
        x += 20 + _CHARACTER * len(text) + 24
    if timeline.left_out:
        add(svg, "text", f"{timeline.left_out} operations in further lanes are not shown", class_="soft", x=_number(x), y=_number(y))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
