"""The report about a trace, as a single HTML file."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import re
import time
from html.parser import HTMLParser

import pytest

from ckpt_observe.explain import Evidence, explain
from ckpt_observe.pictures import report_page
from ckpt_observe.pictures.report import MAX_DETAILS, MAX_DRAWN, MAX_LINES
from ckpt_observe.query import Trace, TraceSummary
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import EXCEPTION_STACKTRACE
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.testing.operations import SECOND, make_operation
from ckpt_observe.testing.spans import START_UNIX_NANO

NOW = START_UNIX_NANO + 100 * SECOND
ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=https://evil.example/x onerror=alert(1)>',
    "</style><style>@import url(https://evil.example)</style>",
    "</pre></details></table><iframe src=//evil.example>",
    "<svg onload=alert(1)>",
    "javascript:alert(1)",
    "]]><!--\x00\x1b]0;title\x07\u202e\ud800",
    "{{7*7}}${7*7}&#60;script&#62;",
]
ACTIVE = {"script", "iframe", "img", "image", "link", "object", "embed", "form", "a", "base", "use", "audio", "video"}


class Page(HTMLParser):
    """What a browser would make of a page: its elements, attributes, texts and style."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self.path = set(), [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        self.path.append(tag)

    def handle_endtag(self, tag):
        while self.path and self.path.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.path[-1] if self.path else "", data))

    def text(self, tag=None):
        return "".join(data for path, data in self.texts if tag in (None, path))


def report(*operations, tree=("tree",), name="task agent", versions=None):
    summary = TraceSummary("ab" * 16, name, START_UNIX_NANO, NOW, len(operations), len(operations), 1, 0)
    trace = Trace(summary=summary, operations=operations)
    explanations = [explain(operation, Evidence(now_unix_nano=NOW, last_good_save=operation)) for operation in operations[:3]]
    return report_page(trace, tree, explanations, versions or {"ckpt_observe": "1.0"}, NOW)


def hostile_operation(attack):
    """An operation with the attack in every field that a program can set."""
    attributes = dict.fromkeys((*names.ATTRIBUTES, attack, "mine"), attack)
    operation = make_operation(name=attack, task=attack, outcome="error", phases={attack: 1.0}, exception=attack, attributes=attributes)
    replacements = {
        "events": (*operation.events, SpanEvent(attack, NOW, {attack: attack, EXCEPTION_STACKTRACE: attack})),
        "links": (SpanLink(attack, attack, {attack: attack}),),
        "resource": {attack: attack, "service.name": attack, "host.name": attack},
        "outcome": attack,
    }
    fields = {field: getattr(operation, field) for field in operation.__struct_fields__}
    return type(operation)(**{**fields, **replacements})


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_hostile_content_is_text(attack):
    """Whatever a program puts into names, values, messages and versions is shown as text: no element, attribute or style of its own."""
    harmless = Page(report(hostile_operation("harmless"), tree=("harmless",), name="harmless", versions={"harmless": "harmless"}))
    text = report(hostile_operation(attack), tree=(attack,), name=attack, versions={attack: attack})
    page = Page(text)
    assert page.tags == harmless.tags
    assert not page.tags & ACTIVE
    assert {name for name, _ in page.attributes} == {name for name, _ in harmless.attributes}
    assert page.text("style") == harmless.text("style")
    assert not any(name.startswith("on") or name in ("src", "href", "action", "style") for name, _ in page.attributes)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800]", text)
    text.encode()


def test_hostile_content_is_still_there():
    """Escaping loses nothing: a reader sees what the program wrote."""
    page = Page(report(hostile_operation(ATTACKS[0]), tree=(ATTACKS[1],)))
    assert ATTACKS[0] in page.text("td")
    assert ATTACKS[1] in page.text("pre")


def test_policy_allows_only_our_style():
    """The content security policy forbids everything except the style, which it names by its hash; the page names no other host."""
    text = report(make_operation())
    page = Page(text)
    [policy] = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    digest = base64.b64encode(hashlib.sha256(page.text("style").encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "http:" not in text
    assert "https:" not in text


def test_report_contains_everything():
    """Explanation, timeline, tree, attributes, exception with stack, phases, link, process and versions."""
    event = SpanEvent("exception", NOW, {"exception.type": "OSError", EXCEPTION_STACKTRACE: "Traceback\n  line 1"})
    operation = make_operation(outcome="error", attributes={names.ERROR_CODE: "storage.no_space", names.STEP: 4, "mine.lr": 0.1})
    fields = {field: getattr(operation, field) for field in operation.__struct_fields__}
    full = type(operation)(**{**fields, "events": (event,), "links": (SpanLink("cd" * 16, "ef" * 8),)})
    text = Page(report(full, tree=("a tree",), versions={"langgraph": "1.2.3"})).text()
    for part in (
        "The file system is full",
        "Timeline",
        "a tree",
        "mine.lr",
        "0.1",
        "Traceback\n  line 1",
        "write",
        "cd" * 16,
        "42",
        "box",
        "1.2.3",
    ):
        assert part in text, part


def test_secrets_and_people_are_left_out(monkeypatch):
    """Secrets in any field, user and session, and the home directory are not in the report."""
    monkeypatch.setenv("HOME", "/home/alice")
    secret = "postgresql://alice:hunter2@db/x"
    attributes = {
        names.USER_ID: "alice@example.com",
        names.SESSION_ID: "session-of-alice",
        names.LOCATION: "file:///home/alice/checkpoints",
        "api_key": "abc",
        "mine": secret,
    }
    operation = make_operation(outcome="error", exception=secret, attributes=attributes, resource={"password": "abc", "url": secret})
    text = report(operation, tree=(secret, "/home/alice/tree"), name=secret)
    for word in ("hunter2", "alice", "abc", "example.com"):
        assert word not in text.replace("ab" * 16, "").lower(), word
    assert "~/checkpoints" in text


def test_large_trace_is_bounded():
    """Of a trace with thousands of operations, the details of the first are listed, and the report says so."""
    operations = [make_operation(number, start=number / 100) for number in range(MAX_DRAWN + 100)]
    text = report(*operations, tree=["line"] * (MAX_LINES + 1))
    assert f"The first {MAX_DETAILS} of {MAX_DRAWN + 100}." in text
    assert f"The first {MAX_LINES} of {MAX_LINES + 1} lines." in text
    assert (text.count("<details>"), text.count("<g>"), text.count("line\n")) == (MAX_DETAILS, MAX_DRAWN, MAX_LINES - 1)


@pytest.mark.parametrize(("days", "zones"), [(0, "UTC-08:00"), (100, "UTC-08:00, then UTC-07:00")])
def test_times_have_a_zone(monkeypatch, days, zones):
    """The page says in which zone its times are. It changes if a report about a trace of the winter is made in the summer."""
    with monkeypatch.context() as environment:
        environment.setenv("TZ", "America/Los_Angeles")
        time.tzset()
        start = dt.datetime(2026, 1, 31, tzinfo=dt.UTC).timestamp()
        summary = TraceSummary("ab" * 16, "task agent", int(start * 1e9), int(start * 1e9), 0, 0, 0, 0)
        text = report_page(Trace(summary=summary, operations=()), (), (), {}, int((start + days * 86400) * 1e9))
    time.tzset()
    assert f"Times are in {zones}." in Page(text).text("p")
