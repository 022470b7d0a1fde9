"""The contract of every instrumentor, as a pytest class to inherit.

    class TestTorch(InstrumentorContract):
        instrumentor = "ckpt_observe.instrument.torch:TorchInstrumentor"
        use = "import torch, io; torch.save({}, io.BytesIO())"

Each test runs one scenario of `instrumentor_scenarios` in its own process, because a module is imported only once per process. Scenarios
that begin with the import are forked from one process, which has imported the library: the import of a large one takes seconds. The other
ones are forked from a process that has not.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from typing import ClassVar

import pytest

STEPS = ("import", "instrument", "uninstrument", "instrument")
ORDERS = sorted(set(itertools.permutations(STEPS)))


SIDES, STYLES = ("under", "over"), ("wrapt", "closure")
TIMEOUT = 300
"""Seconds for each scenario, which imports a library and uses it. `instrumentor_scenarios` ends one that hangs before that."""


def _describe(scenario: str, **arguments: object) -> str:
    return json.dumps([scenario, arguments])


IMPORT_FIRST = (
    *(_describe("order", steps=order) for order in ORDERS if order[0] == "import"),
    *(_describe("third_party", style=style, side=side) for style in STYLES for side in SIDES),
    *map(_describe, ("twice", "odd_calls", "renamed", "behaviour")),
)
"""The scenarios that begin with the import of the library."""
IMPORT_LATER = tuple(_describe("order", steps=order) for order in ORDERS if order[0] != "import")


@functools.cache
def _run_scenarios(subject: str, scenarios: tuple[str, ...]) -> dict[str, str]:
    """Run scenarios, each in a fork of one new process. Return for each what it printed if it failed, otherwise an empty string."""
    moment = "import-first" if scenarios == IMPORT_FIRST else "import-later"
    command = [sys.executable, "-m", "ckpt_observe.testing.instrumentor_scenarios", moment, subject, *scenarios]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT * len(scenarios), check=False)
    assert process.returncode == 0, f"{scenarios}\n{process.stdout}{process.stderr}"
    outputs: list[str] = json.loads(process.stdout.splitlines()[-1])
    return dict(zip(scenarios, outputs, strict=True))


class InstrumentorContract:
    """What a host program can expect of every instrumentor."""

    instrumentor: ClassVar[str]
    """`module:Class`, created without arguments."""
    use: ClassVar[str]
    """Python source that imports the library and runs one observed operation."""
    members: ClassVar[tuple[str, ...]] = ()
    """Modules with more classes of the families than those that the instrumentor names. They are checked, too."""

    def run(self, name: str, **arguments: object) -> None:
        subject = json.dumps({"instrumentor": self.instrumentor, "use": self.use, "members": self.members})
        scenario = _describe(name, **arguments)
        output = _run_scenarios(subject, IMPORT_FIRST if scenario in IMPORT_FIRST else IMPORT_LATER)[scenario]
        assert not output, f"{scenario}\n{output}"

    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    def test_any_order_of_import_and_switching(self, order: tuple[str, ...]) -> None:
        """In any order of import, instrument() and uninstrument(), the last call counts; uninstrument() restores the original objects."""
        self.run("order", steps=order)

    def test_every_order_is_among_them(self) -> None:
        """The test above covers every order: no subclass dropped one."""
        (mark,) = type(self).test_any_order_of_import_and_switching.pytestmark  # type: ignore[attr-defined]
        assert set(mark.args[1]) == set(itertools.permutations(STEPS))

    def test_twice_is_once(self) -> None:
        """Instrumenting again, with the same or another instrumentor, does not wrap again."""
        self.run("twice")

    @pytest.mark.parametrize("style", STYLES)
    @pytest.mark.parametrize("side", SIDES)
    def test_beside_a_third_party(self, style: str, side: str) -> None:
        """Another package's wrapper stays in place; ours is removed from below or above it, or disabled if that is not possible."""
        self.run("third_party", style=style, side=side)

    def test_results_and_exceptions_are_the_same_objects(self) -> None:
        """Even for calls with unexpected arguments, the host program gets the result or exception of its own function."""
        self.run("odd_calls")

    def test_renamed_target_is_reported(self) -> None:
        """A target that the library no longer has is reported as renamed, and the others are patched."""
        self.run("renamed")

    def test_patched_callables_behave_like_the_originals(self) -> None:
        """Patched callables pickle, copy, bind and inspect like the originals."""
        self.run("behaviour")
