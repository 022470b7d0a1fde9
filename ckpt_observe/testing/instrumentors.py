"""The contract of every instrumentor, as a pytest class to inherit.

    class TestTorch(InstrumentorContract):
        instrumentor = "ckpt_observe.instrument.torch:TorchInstrumentor"
        use = "import torch, io; torch.save({}, io.BytesIO())"

Each test runs one scenario of `instrumentor_scenarios` in its own process, because a module is imported only once per process.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import ClassVar

import pytest

STEPS = ("import", "instrument", "uninstrument", "instrument")
ORDERS = sorted(set(itertools.permutations(STEPS)))


class InstrumentorContract:
    """What a host program can expect of every instrumentor."""

    instrumentor: ClassVar[str]
    """`module:Class`, created without arguments."""
    use: ClassVar[str]
    """Python source that imports the library and runs one observed operation."""
    members: ClassVar[tuple[str, ...]] = ()
    """Modules with more classes of the families than those that the instrumentor names. They are checked, too."""

    def run(self, scenario: str, **arguments: object) -> None:
        payload = json.dumps({"instrumentor": self.instrumentor, "use": self.use, "members": self.members, **arguments})
        command = [sys.executable, "-m", "ckpt_observe.testing.instrumentor_scenarios", scenario, payload]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert process.returncode == 0, f"{scenario} {arguments}\n{process.stdout}{process.stderr}"

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

    @pytest.mark.parametrize("style", ["wrapt", "closure"])
    @pytest.mark.parametrize("side", ["under", "over"])
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
