"""YAML that people and parsers read alike."""

from __future__ import annotations

import json

import pytest

from ckpt_observe.support.yaml import dump


def test_blocks():
    """Mappings and lists are blocks, texts of several lines too; what is empty stays visible."""
    data = {
        "groups": [{"name": "a-b", "rules": [{"expr": "up\n  > 1", "for": "5m", "labels": {}, "list": []}, {"number": 1.5}]}],
        "words": ["x", ["yy", "zz"]],
    }
    assert dump(data).splitlines() == [
        "groups:",
        "  - name: a-b",
        "    rules:",
        "      - expr: |-",
        "          up",
        "            > 1",
        "        for: 5m",
        "        labels: {}",
        "        list: []",
        "      - number: 1.5",
        "words:",
        "  - x",
        "  - - yy",
        "    - zz",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true",
        "No",
        "null",
        "1",
        "1.5",
        "1e3",
        "0x1f",
        "- a",
        "a: b",
        "a #b",
        "{{ $x }}",
        "it's",
        "*",
        "&a",
        "!b",
        "é: ü",
        "tab\there",
        " x ",
        "@",
    ],
)
def test_text_that_could_be_something_else_is_quoted(text):
    """As JSON, which is YAML."""
    assert dump({"key": text}) == f"key: {json.dumps(text, ensure_ascii=False)}\n"


def test_text_with_double_quotes_is_in_single_ones():
    """So that an expression is read as it is meant; where both occur, JSON again."""
    assert dump({"key": 'a="b"'}) == "key: 'a=\"b\"'\n"
    assert dump({"key": 'a="b\'s"'}) == 'key: "a=\\"b\'s\\""\n'
