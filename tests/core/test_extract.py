"""Checkpoints as text."""

from __future__ import annotations

import json
import math

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.extract import extract
from ckpt_observe.errors import ConfigError, SerializationError

STATE = {
    "text": "two\nlines: # [odd] 'quotes' \"too\"",
    "words": ["true", "no", "null", "1.5", "- dash", "", " ", "plain word", "a: b", "☃"],
    "numbers": [1, -2.5, 1e300, 1.5e-9, math.inf],
    "nested": {"empty": {}, "none": [], "deep": [[1, [2]], {"a": {"b": None}}]},
    "flag": True,
    "odd key: #": 1,
    "unseen": ["\x7f", "a\x85b", "\u2028", "\ufeff"],
}


@pytest.fixture
def info():
    return Checkpointer("memory://").save("a|b", STATE, step=3, id="x", metadata={"why": "`code`"}, tags=["best"])


def test_json_is_read_back(info):
    """D2: the JSON form holds summary and state."""
    text = extract(info, {**STATE, "numbers": [1]}, "json")
    assert json.loads(text)["state"] == {**STATE, "numbers": [1]}
    assert json.loads(text)["summary"]["id"] == "x"


def test_yaml_is_read_back_by_yaml(info):
    """D2: the YAML form means the same to a real YAML reader, whatever the text looks like."""
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(extract(info, STATE, "yaml"))["state"] == STATE


def test_markdown_is_readable_and_cannot_be_broken_out_of(info):
    """D1, D2: a table of facts, a table of keys, the state; hostile names stay in their cell."""
    text = extract(info, STATE, "markdown")
    assert "| task | a\\|b |" in text
    assert "| words | list |" in text
    assert '"why": "`code`"' in text
    assert text.count("```json") == 2


def test_what_has_no_plain_form_is_described(info):
    """An object is shown as Python shows it, for every style."""
    for style in ("markdown", "yaml", "json"):
        assert "slice(1, 2, None)" in extract(info, {"odd": slice(1, 2)}, style)


@pytest.mark.parametrize("style", ["markdown", "yaml", "json"])
def test_any_state_that_can_be_saved_is_shown(info, style):
    """D2: whatever its keys are, and also one that is nothing much."""
    text = extract(info, [{(1, 2): "pair", None: "none", True: {5}}], style)
    assert all(shown in text for shown in ("(1, 2)", "pair", "None", "none", "True"))


def test_markdown_shows_a_state_that_is_nothing_much(info):
    """D1: 0 is a state too."""
    assert "## State\n\n```json\n0\n```" in extract(info, 0, "markdown")


def test_no_key_hides_another(info):
    """D2: a number and its digits are two keys, and so are two that are not a number."""
    state = {1: "number", "1": "text", "1 (int)": "odd", math.nan: "first", float("nan"): "second"}
    shown = json.loads(extract(info, state, "json"))["state"]
    assert shown == {"1 (int) (int)": "number", "1": "text", "1 (int)": "odd", "nan": "first", "nan (float)": "second"}


def nested(levels):
    state = 0
    for _ in range(levels):
        state = [state]
    return state


@pytest.mark.parametrize("style", ["markdown", "yaml", "json"])
@pytest.mark.parametrize("state", [nested(100_000), {"half": "\ud800"}], ids=["deep", "half a character"])
def test_state_that_cannot_be_text_is_typed(info, style, state):
    """D2: too deep, or half of a surrogate pair, is an error of ours."""
    with pytest.raises(SerializationError, match=style):
        extract(info, state, style)


def test_unknown_style_is_refused(info):
    """A style that is not known is not shown as another."""
    with pytest.raises(ConfigError, match="markdown, yaml, json"):
        extract(info, STATE, "xml")


def test_number_of_numpy_and_table_are_described(info):
    """D2: what has a shape is no array yet: a number has a value, and a table no one type of element."""
    np = pytest.importorskip("numpy")
    table = type("Table", (), {"shape": (2, 2), "__repr__": lambda self: "a table"})()
    shown = json.loads(extract(info, {"loss": np.float64(1.5), "table": table, "weights": np.zeros((2, 3))}, "json"))["state"]
    assert "1.5" in shown["loss"]
    assert (shown["table"], shown["weights"]) == ("a table", "ndarray float64 [2, 3]")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028"], ids=ascii)
def test_end_of_a_line_does_not_leave_the_cell(end):
    """D1: whatever ends a line, a name of a key stays in its row."""
    name = f"key{end}# Heading"
    info = Checkpointer("memory://").save("t", {name: 1})
    assert "| key \\# Heading | int | 1 |" in extract(info, {}, "markdown").splitlines()
