"""Names say what a thing is or does."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import ckpt_observe

ROOT = Path(__file__).parent.parent
PACKAGE = Path(ckpt_observe.__file__).parent

BANNED = {
    *("told", "found", "given", "said", "known", "noted", "kept", "made", "left", "taken", "seen", "asked", "gone", "wanted"),
    *("where", "others", "one", "here", "own"),
    *("sink", "sinks", "drain", "drains", "custody", "outlet", "outlets", "board", "boards", "leftovers"),
}
"""Participles and pronouns that do not say what a thing is, and words that another word replaced."""

SAME_SUBJECT = {
    "companion",
    "daemon",
    "laminar",
    "metrics",
    "observability",
    "operations",
    "prometheus",
    "report",
    "spans",
    "sqlite",
    "storage",
    "timeline",
}
"""Module names that occur in several packages, for the same subject."""


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *(path for part in ("tests", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py"))])


def names_in(path: Path):
    """Every name that the module gives to a module, class, function, argument, variable or attribute, with its line."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str()):
                yield node.lineno, node.asname


def test_names_say_what_a_thing_is():
    """No bare participle, pronoun or replaced word is a name."""
    assert [f"{path}:{line}: {name}" for path in sources() for line, name in names_in(path) if name.strip("_").lower() in BANNED] == []


def test_public_classes_have_different_names():
    """No two public classes of the package share a name."""
    classes = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_module_names_repeat_only_for_the_same_subject():
    """A module name is used once in the package, unless the subject is the same."""
    modules = Counter(path.stem for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))
    assert {name for name, count in modules.items() if count > 1} - SAME_SUBJECT == set()
