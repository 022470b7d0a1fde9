"""Timelines as text, SVG and HTML."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from ckpt_observe.pictures import build_timeline, timeline_page, timeline_svg, timeline_text
from ckpt_observe.pictures.time_scale import TimeScale
from ckpt_observe.pictures.timeline import MAX_LANES, MEANINGS, SYMBOLS
from ckpt_observe.query import RUNNING
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import OUTCOMES
from ckpt_observe.testing.operations import SECOND, make_operation
from ckpt_observe.testing.spans import START_UNIX_NANO

NOW = START_UNIX_NANO + 10_000 * SECOND
HOSTILE = "\x1b[2J\u202e</svg><script>alert(1)</script>&\"'"


def timeline(*operations):
    return build_timeline(operations, NOW)


def test_sparse_saves_are_not_thin_lines():
    """Saves of one second, half an hour apart: each gets its share of the width, because the gaps are folded."""
    scale = TimeScale([(START_UNIX_NANO + i * 1800 * SECOND, START_UNIX_NANO + (i * 1800 + 1) * SECOND) for i in range(8)], 1000, 30)
    bars = [piece for piece in scale.pieces if not piece.is_folded]
    assert [piece.seconds for piece in scale.folds] == [1799.0] * 7
    assert all(piece.width == pytest.approx((1000 - 7 * 30) / 8) for piece in bars)


def test_dense_saves_are_not_folded():
    """Short gaps stay as they are, so that the picture is in proportion."""
    scale = TimeScale([(i * 10, i * 10 + 9) for i in range(50)], 500, 30)
    assert (len(scale.pieces), scale.folds) == (1, [])
    assert scale.position(250) == pytest.approx(250 / 499 * 500)


def test_time_never_runs_backwards():
    """Later moments are further to the right, also inside and around folds and outside the axis; all are within the width."""
    scale = TimeScale([(0, 10), (5, 20), (1000, 1010), (900_000, 900_001), (900_000, 900_000)], 100, 40)
    positions = [scale.position(moment) for moment in range(-5000, 905_000, 37)]
    assert positions == sorted(positions)
    assert (positions[0], positions[-1]) == (0.0, pytest.approx(100.0))


def test_many_folds_leave_room():
    """Thousands of folded gaps take half of the width at most."""
    scale = TimeScale([(i * 1_000_000, i * 1_000_000 + 1) for i in range(5000)], 1000, 50)
    assert sum(fold.width for fold in scale.folds) == pytest.approx(500)


def test_text_has_a_lane_for_each_task_and_operation():
    """Lanes are labelled, outcomes are letters, and a legend explains the letters that occur."""
    lines = timeline_text(
        timeline(
            make_operation(1),
            make_operation(2, "load", start=0.5, outcome="error"),
            make_operation(3, start=1000, outcome="interrupted"),
            make_operation(4, start=9999, outcome=RUNNING),
        ),
        80,
    )
    save, load = lines[:2]
    assert save.startswith("agent save  =")
    assert re.fullmatch(r"agent load +┊?E+┊.*", load)
    assert "X" in save
    assert save.endswith(">")
    assert lines[-2] == "= succeeded, E failed, X process died, > running"
    assert lines[-1] == "┊ folded time without an operation: 3 gaps, 2h 46m"
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("width", range(40, 80))
@pytest.mark.parametrize("count", [2, 3, 6])
def test_gaps_of_a_single_lane_are_visible(count, width):
    """Bars that touch a folded gap on both sides do not hide its sign."""
    lines = timeline_text(
        timeline(*(make_operation(number, start=number * 1000, phases={"write": number}) for number in range(1, count + 1))), width
    )
    assert re.fullmatch(r"agent save  =+( ?┊ ?=+)+", lines[0])
    assert lines[0].count("┊") == count - 1
    assert f": {count - 1} gap{'s' if count > 2 else ''}, " in lines[-1]


def test_failure_is_visible_between_successes():
    """If several operations share a character, the failure is shown."""
    operations = [make_operation(number, start=number, outcome="error" if number == 500 else "ok") for number in range(1000)]
    assert timeline_text(timeline(*operations), 60)[0].count("E") == 1


def test_every_outcome_has_its_own_letter_and_words():
    """Outcomes differ by letter and text, not by colour alone: in text and in the picture."""
    operations = [make_operation(index, start=index, outcome=outcome) for index, outcome in enumerate((*OUTCOMES, RUNNING))]
    svg = ET.fromstring(timeline_svg(timeline(*operations), "x"))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(set(SYMBOLS.values())) == len(SYMBOLS) == len(OUTCOMES) + 1
    for outcome in (*OUTCOMES, RUNNING):
        assert any(MEANINGS[outcome] in (text or "") for text in texts), outcome
        assert outcome == "ok" or SYMBOLS[outcome] in texts


@pytest.mark.parametrize("draw", [timeline_svg, timeline_page])
def test_hostile_names_are_text(draw):
    """Names of tasks, steps and phases cannot become elements or control characters."""
    operation = make_operation(
        task=HOSTILE, phases={HOSTILE: 5.0}, attributes={names.STEP: HOSTILE, names.ERROR_PHASE: HOSTILE}, outcome="error"
    )
    text = draw(timeline(operation), HOSTILE)
    assert "<script" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert r"\x1b[2J" in text


def test_text_of_hostile_names():
    """In text, control characters are escaped and long names are cut."""
    lines = timeline_text(timeline(make_operation(task=HOSTILE), make_operation(2, task="x" * 500)), 100)
    assert all(line.isprintable() for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_too_many_lanes_are_counted():
    """Beyond the limit, lanes are left out and the number of their operations is shown."""
    many = timeline(*(make_operation(number, task=f"task-{number}") for number in range(MAX_LANES + 3)))
    assert (len(many.lanes), many.left_out) == (MAX_LANES, 3)
    assert "(3 more" in "\n".join(timeline_text(many, 80))
    assert "3 operations in further lanes" in timeline_svg(many, "x")


def test_simultaneous_operations_have_rows():
    """Operations of one lane that overlap are drawn below each other."""
    svg = ET.fromstring(timeline_svg(timeline(*(make_operation(number) for number in range(3))), "x"))
    rows = {rect.get("y") for rect in svg.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class") == "ok" and rect.get("rx")}
    assert len(rows) == 3
