"""Measures the start of commands: CPU time against `python -c "import argparse"`: `python -m benchmarks.commands [RUNS]`.

Each command runs in its own process, with a small store and an empty state directory. The result is the best of several runs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from ckpt_observe.core import Checkpointer

PEER = ("-c", "import argparse")
BUDGET = 20.0
"""A command over `import argparse`."""
COMMANDS = (
    "--version",
    "--help",
    "list STORE",
    "show STORE",
    "diff STORE run latest latest",
    "log STORE run",
    "extract STORE run",
    "verify STORE",
    "prune STORE --keep-last 1",
    "drill STORE",
    "stats STORE",
    "stats",
    "advise",
    "traces",
)


def cpu_milliseconds(arguments: tuple[str, ...], directory: str) -> float:
    """Run Python with these arguments and return the CPU time of the process."""
    environ = {**os.environ, "CKPT_OBSERVE_DIR": f"{directory}/state", "CKPT_OBSERVE_PAGES_DIR": f"{directory}/pages"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def main(runs: int) -> None:
    over = []
    with tempfile.TemporaryDirectory() as directory:
        store = f"{directory}/store"
        with Checkpointer(store) as checkpointer:
            for step in range(3):
                checkpointer.save("run", {"step": step}, step=step)
        peer = min(cpu_milliseconds(PEER, directory) for _ in range(runs))
        print(f"import argparse: {peer:.1f} ms of CPU")
        for command in COMMANDS:
            arguments = ("-m", "ckpt_observe", *command.replace("STORE", store).split())
            milliseconds = min(cpu_milliseconds(arguments, directory) for _ in range(runs))
            print(f"  {command:30} {milliseconds:6.1f} ms  {milliseconds / peer:5.1f} ×")
            if milliseconds / peer > BUDGET:
                over.append(command)
    if over:
        sys.exit(f"over budget ({BUDGET:g} ×): {', '.join(over)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
