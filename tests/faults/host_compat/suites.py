"""Test suites of others, run alone and observed on the same machine: every test must have the same result.

Some of these tests fail now and then by themselves. A test with another result is repeated several times under both conditions, and counts
as different only if no result of one condition also occurs under the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from tests.faults.host_compat.observers import Observer

REPETITIONS = 4
WHOLE = "the whole suite"
"""Stands for the tests of a suite that crashed or did not start."""
Results = dict[str, str]
"""The result of each test: `passed`, or the name of the element that explains why not."""


class Suite(NamedTuple):
    """A test suite. `command` returns the arguments of Python, for a result file and the tests to run (all, if it is empty)."""

    name: str
    command: Callable[[str, list[str]], list[str]]


def cpython(module: str) -> Suite:
    def command(result_file: str, tests: list[str]) -> list[str]:
        selection = [argument for test in tests for argument in ("--match", test)]
        return ["-m", "test", "--junit-xml", result_file, *selection, module]

    return Suite(f"CPython {module}", command)


def _joblib(result_file: str, tests: list[str]) -> list[str]:
    selection = ["-k", " or ".join(sorted({test.rpartition(".")[2].partition("[")[0] for test in tests}))] if tests else []
    plugins = [argument for name in ("cacheprovider", "randomly", "xdist") for argument in ("-p", f"no:{name}")]
    return ["-m", "pytest", "-q", *plugins, "--junit-xml", result_file, *selection, "--pyargs", "joblib"]


SUITES = [*(cpython(f"test_{name}") for name in ("threading", "signal", "asyncio", "importlib")), Suite("joblib", _joblib)]


class Comparison(NamedTuple):
    """What two conditions have in common, and what not."""

    tests: int
    failures: int
    """Tests that passed under neither of both conditions."""
    unsteady: list[str]
    """Tests whose results differed at first, but not reliably."""
    different: list[str]


def compare(suite: Suite, first: Observer, second: Observer) -> Comparison:
    """Run a suite under two conditions."""
    results = [run(suite, observer, []) for observer in (first, second)]
    names = sorted(results[0].keys() | results[1].keys())
    suspects = [name for name in names if results[0].get(name) != results[1].get(name)]
    different = []
    if suspects:
        repeated = [[run(suite, observer, suspects) for _ in range(REPETITIONS)] for observer in (first, second)]
        for name in suspects:
            outcomes = [{each.get(name) for each in [*runs, once]} for runs, once in zip(repeated, results, strict=True)]
            if not outcomes[0] & outcomes[1]:
                different.append(f"{name}: {first.name} {outcomes[0]}, {second.name} {outcomes[1]}")
    unsteady = [name for name in suspects if not any(line.startswith(f"{name}: ") for line in different)]
    failures = sum(all(result.get(name) not in ("passed", "skipped") for result in results) for name in names)
    return Comparison(len(names), failures, unsteady, different)


def run(suite: Suite, observer: Observer, tests: list[str]) -> Results:
    """Run a suite, or some of its tests, in an empty directory."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "results.xml"
        result = observer.run(suite.command(str(path), tests), Path(directory), Path(directory) / "state")
        return read_results(path.read_text()) if path.exists() else {WHOLE: f"exit code {result.returncode}: {result.stderr[-300:]}"}


def read_results(text: str) -> Results:
    """Read a file in the format of JUnit. Tests with the same name, such as subtests, are numbered."""
    results: Results = {}
    for case in ET.fromstring(text).iter("testcase"):
        name = base = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        number = 1
        while name in results:
            number += 1
            name = f"{base} #{number}"
        explanations = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        results[name] = explanations[0] if explanations else "passed"
    return results
