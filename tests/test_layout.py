"""Mechanisms that exist once, in `ckpt_observe/support`, are not written again elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ckpt_observe

PACKAGE = Path(ckpt_observe.__file__).parent

BANNED = {
    "sqlite3.connect": "support.sqlite.connect",
    "os.replace": "support.files.replace_file",
    "os.rename": "support.files.move",
    "os.renames": "support.files.move",
    "os.register_at_fork": "support.forks",
    "requests": "support.http_client",
    "urllib.request": "support.http_client",
    "urllib3": "support.http_client",
    "http.client": "support.http_client",
    "httpx": "support.http_client",
    "aiohttp": "support.http_client",
    "http.server": "support.http_server",
    "fcntl": "support.locks",
    "msvcrt": "support.locks",
}
"""Modules and functions of others, and what to use instead. A module stands for everything in it."""


def banned_uses(source: str) -> list[str]:
    """Return the banned modules and functions that the source imports or refers to, also under another name."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    uses: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            uses += [alias.name for alias in node.names]
            names |= {
                alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            uses += [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            uses.append(f"{names[root]}.{rest}" if root in names else "")
    return sorted({rule for rule in BANNED for use in uses if use == rule or use.startswith(f"{rule}.")})


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ("import sqlite3\nsqlite3.connect('x')", ["sqlite3.connect"]),
        ("import sqlite3 as db\ndb.connect('x')", ["sqlite3.connect"]),
        ("from sqlite3 import connect", ["sqlite3.connect"]),
        ("def f():\n    import os\n    os.replace('a', 'b'); os.rename('a', 'b')", ["os.rename", "os.replace"]),
        ("from urllib import request", ["urllib.request"]),
        ("import urllib.request", ["urllib.request"]),
        ("from http.client import HTTPConnection", ["http.client"]),
        ("from urllib3.exceptions import HTTPError", ["urllib3"]),
        ("import sqlite3\nfrom urllib.parse import quote\nimport os\nos.path.join('a')\n'a'.replace('b', 'c')\nsqlite3.Error", []),
        ("import requests_mock", []),
    ],
)
def test_every_way_to_write_it_is_detected(source, rules):
    """The ban does not depend on how a module is imported."""
    assert banned_uses(source) == rules


def test_log_lines_do_not_repeat_the_name_of_the_logger():
    """Formatters print it. The logger of the package comes from support.logs."""
    violations = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"debug", "info", "warning", "error", "exception", "warn_once", "getLogger"}
        and any(isinstance(value, ast.Constant) and str(value.value).startswith("ckpt_observe") for value in node.args[:2])
        and path.name != "logs.py"
    ]
    assert violations == []


def test_shared_mechanisms_are_used():
    """Files, locks, forks, SQLite and HTTP have subtle rules, which are kept in one place."""
    violations = [
        f"{path.relative_to(PACKAGE)}: {use}: use {BANNED[use]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != PACKAGE / "support"
        for use in banned_uses(path.read_text(encoding="utf-8"))
    ]
    assert violations == []
