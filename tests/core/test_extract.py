"""Checkpoints as Markdown, YAML or JSON text."""

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


def test_json_has_summary_and_state(info):
    """The JSON text contains the summary and the state."""
    text = extract(info, {**STATE, "numbers": [1]}, "json")
    assert json.loads(text)["state"] == {**STATE, "numbers": [1]}
    assert json.loads(text)["summary"]["id"] == "x"


def test_yaml_is_parsed_as_the_same_state(info):
    """PyYAML reads the YAML text as the same state, even if it contains text that looks like YAML syntax."""
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(extract(info, STATE, "yaml"))["state"] == STATE


def test_markdown_escapes_hostile_names(info):
    """The Markdown text has a table of properties, a table of keys and the state; hostile names stay in their table cell."""
    text = extract(info, STATE, "markdown")
    assert "| task | a\\|b |" in text
    assert "| words | list |" in text
    assert '"why": "`code`"' in text
    assert text.count("```json") == 2


def test_other_objects_are_shown_by_repr(info):
    """An object without a plain form is shown by its repr, in every style."""
    for style in ("markdown", "yaml", "json"):
        assert "slice(1, 2, None)" in extract(info, {"odd": slice(1, 2)}, style)


@pytest.mark.parametrize("style", ["markdown", "yaml", "json"])
def test_keys_of_any_type_are_shown(info, style):
    """A state with keys that are not strings is shown in every style."""
    text = extract(info, [{(1, 2): "pair", None: "none", True: {5}}], style)
    assert all(part in text for part in ("(1, 2)", "pair", "None", "none", "True"))


def test_markdown_shows_a_falsy_state(info):
    """A state of 0 is shown."""
    assert "## State\n\n```json\n0\n```" in extract(info, 0, "markdown")


def test_no_key_hides_another(info):
    """Keys whose text is the same, such as 1 and "1" or two NaN, are shown separately."""
    state = {1: "number", "1": "text", "1 (int)": "odd", math.nan: "first", float("nan"): "second"}
    shown_state = json.loads(extract(info, state, "json"))["state"]
    assert shown_state == {"1 (int) (int)": "number", "1": "text", "1 (int)": "odd", "nan": "first", "nan (float)": "second"}


def nested(levels):
    state = 0
    for _ in range(levels):
        state = [state]
    return state


@pytest.mark.parametrize("style", ["markdown", "yaml", "json"])
@pytest.mark.parametrize("state", [nested(100_000), {"half": "\ud800"}], ids=["deep", "half a character"])
def test_state_that_cannot_be_text_is_refused(info, style, state):
    """A state that is nested too deeply, or has half of a surrogate pair, raises SerializationError."""
    with pytest.raises(SerializationError, match=style):
        extract(info, state, style)


def test_unknown_style_is_refused(info):
    """An unknown style raises an error that lists the styles."""
    with pytest.raises(ConfigError, match="markdown, yaml, json"):
        extract(info, STATE, "xml")


def test_only_arrays_are_described_by_shape(info):
    """An object with a shape is not always an array: a numpy number is shown with its value, and a table by its repr."""
    np = pytest.importorskip("numpy")
    table = type("Table", (), {"shape": (2, 2), "__repr__": lambda self: "a table"})()
    shown_state = json.loads(extract(info, {"loss": np.float64(1.5), "table": table, "weights": np.zeros((2, 3))}, "json"))["state"]
    assert "1.5" in shown_state["loss"]
    assert (shown_state["table"], shown_state["weights"]) == ("a table", "ndarray float64 [2, 3]")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028"], ids=ascii)
def test_line_break_in_a_key_stays_in_its_row(end):
    """A key with any kind of line break stays in its table row."""
    name = f"key{end}# Heading"
    info = Checkpointer("memory://").save("t", {name: 1})
    assert "| key \\# Heading | int | 1 |" in extract(info, {}, "markdown").splitlines()
