"""Elements of SVG and HTML, and the page around them. Every text is escaped by the library that writes the file.

A page is a single file: it has no script, loads nothing, and its content security policy forbids both. The only style is ours, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from ckpt_observe.support.formatting import printable

STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --band: #f3f5f7;
  --ok: #2f7d4f; --error: #c62828; --interrupted: #8e24aa; --cancelled: #9a6700; --skipped: #57606a; --running: #1769c7; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9aa5b1; --line: #3a424c; --back: #14181d; --band: #1d232a;
  --ok: #5bb97f; --error: #ff7b72; --interrupted: #d58bea; --cancelled: #d8a83a; --skipped: #9aa5b1; --running: #6cb0ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid var(--line); }
pre { overflow-x: auto; background: var(--band); padding: .75rem; font-size: 12px; line-height: 1.35; }
table { border-collapse: collapse; font-size: 13px; } th, td { text-align: left; vertical-align: top; padding: .15rem .75rem .15rem 0; }
td { overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } .note { color: var(--soft); } summary { cursor: pointer; }
svg { max-width: 100%; height: auto; font: 11px ui-monospace, monospace; background: var(--back); }
svg text { fill: var(--text); } svg .soft { fill: var(--soft); } svg .lane { fill: var(--band); } svg .fold { fill: var(--line); }
svg .phase { fill: none; stroke: var(--back); stroke-width: 1; } svg .mark { font-weight: 700; }
svg .ok { fill: var(--ok); } svg .error { fill: var(--error); } svg .cancelled { fill: none; stroke: var(--cancelled); stroke-width: 2; }
svg .skipped { fill: none; stroke: var(--skipped); } svg .interrupted { fill: url(#hatch); stroke: var(--interrupted); }
svg .running { fill: none; stroke: var(--running); stroke-width: 2; stroke-dasharray: 4 2; }
svg .hatch { stroke: var(--interrupted); stroke-width: 2; }
"""
_POLICY: Final = "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def add(parent: Element, tag: str, text: object = "", **attributes: object) -> Element:
    """Append an element with a text. A trailing `_` of an attribute's name is removed: `class_`. Control characters are escaped."""
    element = SubElement(parent, tag, {_name(name): clean(value) for name, value in attributes.items()})
    if text != "":
        element.text = clean(text)
    return element


def clean(value: object) -> str:
    """Return a value as text without control characters, except for line breaks. They could reorder a line, and XML forbids most."""
    return "\n".join(map(printable, str(value).split("\n")))


def add_table(parent: Element, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Append a table. Without a header, the first cell of each row is a heading."""
    table = add(parent, "table")
    if header:
        line = add(add(table, "thead"), "tr")
        for title in header:
            add(line, "th", title, scope="col")
    body = add(table, "tbody")
    for row in rows:
        line = add(body, "tr")
        for index, cell in enumerate(row):
            if index == 0 and not header:
                add(line, "th", cell, scope="row")
            else:
                add(line, "td", cell)


def create_page(title: str) -> tuple[Element, Element]:
    """Return a page and its body."""
    page = Element("html", lang="en")
    head = add(page, "head")
    add(head, "meta", charset="utf-8")
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY.format(digest=digest)})
    add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    add(head, "meta", name="referrer", content="no-referrer")
    add(head, "title", title)
    SubElement(head, "style").text = STYLE
    body = add(page, "body")
    add(body, "h1", title)
    return page, body


def page_text(page: Element) -> str:
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def svg_text(svg: Element) -> str:
    return tostring(svg, encoding="unicode") + "\n"


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
