"""The declared dependencies are the packages that the code imports."""

from __future__ import annotations

import ast
import functools
import os
import re
import site
import sys
import sysconfig
from collections import defaultdict
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import ckpt_observe

PACKAGE = Path(ckpt_observe.__file__).parent

DISTRIBUTIONS = {
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp",
    "opentelemetry.instrumentation": "opentelemetry-instrumentation",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
    "backports": "backports-zstd",
}
"""Distributions whose name differs from the module's; the first match counts."""

EXTRAS = {
    "postgres": ("core/stores/", "readers/langgraph_postgres"),
    "redis": "core/stores/",
    "objects": "core/stores/",
    "lz4": ("core/codecs", "readers/streams"),
    "crypto": "core/ciphers",
    "arrays": "core/",
    "completion": "cli/completion",
    "ui": "viewer/",
    "test": "testing/",
}
"""Where the packages of an extra are imported."""

SUPPLIED_BY_CALLER = {
    "opentelemetry-instrumentation": "otel_instrumentor.py",  # loaded by opentelemetry-instrument, which is part of it
    "torch": "core/",  # needed only to load tensors, which only a program with torch saves
}
"""Packages that are not declared, because the code that imports them runs only in programs that have them."""


def declared() -> dict[str, set[str]]:
    """Return the distributions of each extra; those of "" are always installed."""
    distributions = defaultdict(set)
    for line in requires("ckpt-observe") or []:
        requirement = Requirement(line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", str(requirement.marker))
        distributions[extra[1] if extra else ""].add(requirement.name.lower().replace(".", "-").replace("_", "-"))
    return distributions


def distribution_of(module: str) -> str:
    for prefix, name in DISTRIBUTIONS.items():
        if module == prefix or module.startswith(f"{prefix}."):
            return name
    return module.split(".", maxsplit=1)[0].replace("_", "-").lower()


@functools.cache
def third_party_imports() -> dict[str, set[str]]:
    """Return the distributions that each file of the package imports. This takes seconds, so it is not done when tests are collected."""
    imports = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                # `from opentelemetry import trace` names a module too; the longer name finds the right distribution.
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for module in modules:
                if module.split(".")[0] not in {*sys.stdlib_module_names, "compression", "ckpt_observe"}:  # compression: new in 3.14
                    imports[path.relative_to(PACKAGE).as_posix()].add(distribution_of(module))
    return imports


def undeclared(file: str, imported: set[str]) -> set[str]:
    """Return what a file may not import. It may import base dependencies and the packages of its extra."""
    extras = {extra for extra, prefix in EXTRAS.items() if file.startswith(prefix)}
    allowed = set().union(*(declared()[extra] for extra in {"", *extras}))
    return imported - allowed - {name for name, importer in SUPPLIED_BY_CALLER.items() if file.startswith(importer)}


def test_every_import_is_declared():
    """No file imports what only happens to be installed. Control: such an import is found."""
    assert {file: names for file, imported in third_party_imports().items() if (names := undeclared(file, imported))} == {}
    assert undeclared("core/codecs.py", {"msgspec", "lz4", "redis", "numpy"}) == {"redis"}


def test_every_base_dependency_is_imported():
    """Nothing is installed for everybody that only tests, or nobody, uses."""
    assert declared()[""] <= set().union(*third_party_imports().values())


def test_exceptions_are_still_needed():
    """Each exception names a package that is imported there."""
    imports = third_party_imports()
    places = {
        extra: set().union(*(names for file, names in imports.items() if file.startswith(prefix))) for extra, prefix in EXTRAS.items()
    }
    assert all(places[extra] & declared()[extra] for extra in EXTRAS)
    assert all(any(name in imports[file] for file in imports if file.startswith(place)) for name, place in SUPPLIED_BY_CALLER.items())


@pytest.mark.skipif(not os.environ.get("CKPT_TEST_INSTALLED"), reason="only CI tests the installed wheel")
def test_the_installed_package_is_tested():
    """CI tests the wheel: the package comes from site-packages and not from a checkout."""
    assert PACKAGE.parent in {Path(sysconfig.get_path("purelib")), *map(Path, site.getsitepackages())}


def lowest_versions(extras: set[str]) -> dict[str, Version]:
    """Return the lower bound of each requirement that applies to this Python, with those of the extras and the extras that they include."""
    bounds: dict[str, Version] = {}
    for requirement in map(Requirement, requires("ckpt-observe") or []):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        if requirement.name == "ckpt-observe":
            bounds |= lowest_versions(requirement.extras)
        else:
            [bounds[requirement.name]] = [Version(bound.version) for bound in requirement.specifier if bound.operator == ">="]
    return bounds


@pytest.mark.skipif("CKPT_TEST_LOWEST" not in os.environ, reason="only CI installs the oldest versions")
def test_the_oldest_versions_are_tested():
    """The stage `oldest` tests exactly the lower bounds that are declared. CKPT_TEST_LOWEST has the extras that it installed."""
    bounds = lowest_versions(set(os.environ["CKPT_TEST_LOWEST"].split(",")))
    installed = {name: Version(version(name)) for name in bounds}
    assert installed == bounds
