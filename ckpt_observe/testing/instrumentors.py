"""The contract of every instrumentor, as a pytest class to inherit.

    class TestTorch(InstrumentorContract):
        instrumentor = "ckpt_observe.instrument.torch:TorchInstrumentor"
        use = "import torch, io; torch.save({}, io.BytesIO())"

Each test runs one scene of `instrumentor_scenes` in a process of its own, for an import can be first only once.
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
    """What the host may expect of every instrumentor."""

    instrumentor: ClassVar[str]
    """`module:Class`, made without arguments."""
    use: ClassVar[str]
    """Python source that runs one observed operation, on a library not yet imported."""

    def run(self, scene: str, **given: object) -> None:
        play = json.dumps({"instrumentor": self.instrumentor, "use": self.use, **given})
        command = [sys.executable, "-m", "ckpt_observe.testing.instrumentor_scenes", scene, play]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{scene} {given}\n{done.stdout}{done.stderr}"

    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    def test_any_order_of_import_and_switching(self, order: tuple[str, ...]) -> None:
        """In whatever order it is imported and switched, the last switch counts, and off means the very same object."""
        self.run("order", steps=order)

    def test_every_order_is_among_them(self) -> None:
        """The orders above are all there are: none was dropped by a subclass."""
        (mark,) = type(self).test_any_order_of_import_and_switching.pytestmark  # type: ignore[attr-defined]
        assert set(mark.args[1]) == set(itertools.permutations(STEPS))

    def test_twice_is_once(self) -> None:
        """Instrumenting again, by the same or by another instrumentor, does not wrap again."""
        self.run("twice")

    @pytest.mark.parametrize("style", ["wrapt", "closure"])
    @pytest.mark.parametrize("side", ["under", "over"])
    def test_beside_a_third_party(self, style: str, side: str) -> None:
        """Somebody else's wrapper stays where it is, and ours goes from under or over it, or falls silent."""
        self.run("third_party", style=style, side=side)

    def test_results_and_exceptions_are_the_same_objects(self) -> None:
        """Even when called in a way that no reader understands, the host gets its own result and its own exception."""
        self.run("odd_calls")

    def test_renamed_target_is_reported(self) -> None:
        """A target the library no longer has is reported, and the others are patched."""
        self.run("renamed")

    def test_patched_callables_keep_their_manners(self) -> None:
        """They pickle, copy, bind and inspect as the originals do."""
        self.run("manners")
