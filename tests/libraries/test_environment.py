"""The environment that `.ci/libraries` created has exactly the versions that its file names, and the package works in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import files, version
from pathlib import Path

import pytest

pytestmark = pytest.mark.libraries

VARIABLE = "CKPT_TEST_LIBRARY"
PINS = Path(__file__).parents[2] / ".ci" / "libraries.d"


@pytest.fixture
def pins():
    """Package name and version of each requirement."""
    if VARIABLE not in os.environ:
        pytest.skip("needs an environment of .ci/libraries")
    lines = (PINS / f"{os.environ[VARIABLE]}.txt").read_text(encoding="utf-8").splitlines()
    return {re.sub(r"\[.*\]", "", name): pinned for name, _, pinned in (line.partition("==") for line in lines)}


def test_installed_versions_are_the_pinned_ones(pins):
    """Nothing was upgraded, downgraded or left out when the package was installed next to it."""
    assert {name: version(name) for name in pins} == pins


def test_every_requirement_is_exact(pins):
    """Control of the test above: without a version, the file would describe any environment."""
    assert [name for name, pinned in pins.items() if not re.fullmatch(r"\d[\w.]*", pinned)] == []


def packages_of(distribution):
    """The topmost packages of a distribution, as module names. Those of a namespace, such as `google.adk`, are not at the top."""
    parents = [path.parent for path in files(distribution) or () if path.name == "__init__.py"]
    depth = min(len(parent.parts) for parent in parents)
    return sorted(".".join(parent.parts) for parent in parents if len(parent.parts) == depth)


def test_library_can_be_imported_after_the_package(pins):
    """The library imports as usual in an observed process, without a warning of ours."""
    code = f"import ckpt_observe.auto\nimport {', '.join(packages_of(next(iter(pins))))}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "ckpt_observe" not in process.stderr
