"""Runs a program twice with the same seed, once observed and once not, for tests that compare both."""

from __future__ import annotations

import random
from pathlib import Path

from observation import Observation


class PairedRun:
    """`output` and `spans` are those of the observed program, which ran in `directory`; `bare_output` is that of the other one."""

    def __init__(self, directory: Path, program: Path) -> None:
        seed = random.SystemRandom().randrange(1 << 32)
        print("seed", seed)
        self.directory = directory / "observed"
        bare = directory / "bare"
        for path in (self.directory, bare):
            path.mkdir()
        observation = Observation(self.directory, program.parent)
        self.output = observation.run(program.name, seed)
        self.spans = observation.spans()
        self.bare_output = Observation(bare, program.parent).run(program.name, seed, observed=False)

    def operations_of(self, attribute, prefix, *operations):
        """The spans of operations whose attribute starts with a prefix, in the order of their starts."""
        spans = [span for span in self.spans.operations(*operations) if span.attributes.get(attribute, "").startswith(prefix)]
        return sorted(spans, key=lambda span: span.start_unix_nano)

    def check_content(self, content, *stored):
        """Check that nothing that we wrote contains a text. Control: one of the stored files does."""
        assert any(content.encode() in path.read_bytes() for path in stored)
        files = [path for name in ("state", "pages") for path in (self.directory / name).rglob("*") if path.is_file()]
        assert files
        assert [path for path in files if content.encode() in path.read_bytes()] == []
        assert content not in str(self.spans)
