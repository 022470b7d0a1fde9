"""The pages about libraries are generated from the tables of the instrumentors."""

from __future__ import annotations

import ast
import importlib
import shutil
from pathlib import Path

import pytest

from ckpt_observe.cli.library_notes import NOTES
from ckpt_observe.cli.main import main
from ckpt_observe.libraries import LIBRARIES
from ckpt_observe.semconv import attributes as names

ROOT = Path(__file__).parents[2]
GENERAL_MODULES = {
    *("database_drivers", "families", "instrumentor", "library_call", "managed_phases", "observed_locks", "patching", "phase_calls"),
    *("runs", "saver_attributes", "targets", "wrappers"),
}
"""Modules that all instrumentors use. What they set is in the notes of a library only if it is worth a line there."""
PACKAGE = "ckpt_observe.instrument"
INSTRUMENTORS = {library.instrumentor.partition(":")[0] for library in LIBRARIES.values()}
"""Modules of libraries. What one imports from another, such as an error table, does not set the attributes of the other."""


@pytest.fixture
def checkout(tmp_path):
    """A copy of the pages."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", ["README.md", "docs/libraries.md", "docs/libraries/langgraph.md"])
def test_outdated_page_is_noticed(checkout, capsys, page):
    """Control: a page with another version of LangGraph is reported, and writing repairs it."""
    file = checkout / page
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("langgraph-checkpoint>=", "langgraph-checkpoint>"), encoding="utf-8")
    assert main(["libraries", "--check", str(checkout)]) == 1
    assert f"{page} is out of date" in capsys.readouterr().err
    assert main(["libraries", "--out", str(checkout)]) == 0
    assert file.read_text(encoding="utf-8") == text


def test_missing_page_is_noticed(checkout, capsys):
    """A library without a page is reported."""
    (checkout / "docs" / "libraries" / "langgraph.md").unlink()
    assert main(["libraries", "--check", str(checkout)]) == 1
    assert "langgraph.md is missing" in capsys.readouterr().err


def test_no_page_of_a_library_that_is_not_observed():
    """A page whose library was removed is removed, too."""
    assert {path.stem for path in (ROOT / "docs" / "libraries").glob("*.md")} == set(LIBRARIES)


def attributes_in(module: str) -> set[str]:
    """The attributes that a module and the helper modules of its library name in their source."""
    tree = ast.parse(Path(importlib.import_module(module).__file__).read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    constants = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "names"
    }
    found_names = {getattr(names, constant) for constant in constants}
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)]
    modules = {f"{PACKAGE}.{each.name}" for node in imports if node.module == PACKAGE for each in node.names}
    modules |= {str(node.module) for node in imports if node.module != PACKAGE}
    for helper in modules - INSTRUMENTORS:
        if helper.rpartition(".")[2] not in GENERAL_MODULES:
            found_names |= attributes_in(helper)
    return found_names


@pytest.mark.parametrize("module", sorted(INSTRUMENTORS))
def test_pages_name_the_attributes_that_the_code_sets(module):
    """An attribute that an instrumentor sets is on the page of its library, and no other one is."""
    pages = [set(NOTES[name].attributes) for name, library in LIBRARIES.items() if library.instrumentor.startswith(f"{module}:")]
    general = {
        names.SYSTEM,
        names.STORE,
        names.SAVER,
        names.SIZE_SERIALIZED,
        names.COUNT,
        names.KEY_NAMES,
        names.KEY_SIZES,
        names.COMPARED,
        names.ALTERED_KEYS,
        names.ALTERED_TYPES,
        names.ALTERED_CONTENTS,
        names.ASYNC_BLOCKED,
        names.ASYNC_DURABLE,
        names.WORLD_SIZE,
    }
    in_notes, in_code = set().union(*pages), attributes_in(module)
    assert in_code - in_notes == set()
    assert in_notes - in_code <= general
