"""Ways to run a Python program: alone, observed, or under an observer that does harm, for the controls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HARM = {
    "environment": "os.environ['OF_THE_OBSERVER'] = '1'",
    "threads": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "descriptors": "os.open('/dev/null', os.O_RDONLY)",
    "random numbers": "seed = random.seed; random.seed = lambda *args: (seed(*args), random.random())",
    "signal handlers": "signal.signal(signal.SIGUSR1, lambda *_: None)",
}
"""What an observer must not do to its host program."""


class Observer(NamedTuple):
    """`prefix` comes before the command; `directory` is a directory for PYTHONPATH with a `sitecustomize`, or None."""

    name: str
    prefix: tuple[str, ...] = ()
    directory: Path | None = None

    def run(self, arguments: list[str], directory: Path, state: Path, timeout: float = 3600.0) -> subprocess.CompletedProcess[str]:
        """Run this Python interpreter with some arguments in a directory."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CKPT_OBSERVE_", "OTEL_", "PYTHON"))}
        environ = {**inherited, "CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_EXPORTERS": "local"}
        if self.directory is not None:
            environ["PYTHONPATH"] = str(self.directory)
        command = [*self.prefix, sys.executable, *arguments]
        return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=timeout)


ALONE = Observer("alone")
OBSERVED = Observer("observed", (sys.executable, "-m", "ckpt_observe", "run", "--"))


def harmful(harm: str, directory: Path) -> Observer:
    """Return an observer that does one kind of harm in every Python process."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(f"import os, random, signal, threading\n{HARM[harm]}\n")
    return Observer(harm, directory=directory)
