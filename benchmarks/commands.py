"""Measures the start of commands: CPU time against `python -c "import argparse"`: `python -m benchmarks.commands [RUNS]`.

Each command runs in its own process, with a small store and the traces of its saves. The result is the best of several runs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

PEER = ("-c", "import argparse")
BUDGET = 20.0
"""A command over `import argparse`."""
COMMANDS = (
    "--version",
    "--help",
    "run -- true",
    "traces",
    "why",
    "top --once",
    "timeline",
    "report TRACE --out FILE",
    "list STORE",
    "show STORE",
    "diff STORE run latest~1 latest",
    "log STORE run",
    "extract STORE run",
    "verify STORE",
    "prune STORE --keep-last 1",
    "drill STORE",
    "stats STORE",
    "stats",
    "advise",
    "deliver",
    "clean",
    "semconv",
)
HELP_ONLY = ("demo", "doctor", "tail", "ui", "daemon", "dashboards", "rules", "libraries", "reference", "completion")
"""Commands that run until they are stopped, or do much more than start: their help is measured."""
PROGRAM = """
import sys
import ckpt_observe
from ckpt_observe.core import Checkpointer
with ckpt_observe.task("run"), Checkpointer(sys.argv[1]) as checkpointer:
    for step in range(4):
        checkpointer.save("run", {"step": step}, step=step)
"""


def cpu_milliseconds(arguments: tuple[str, ...], directory: str) -> float:
    """Run Python with these arguments and return the CPU time of the process."""
    environ = {**os.environ, "CKPT_OBSERVE_DIR": f"{directory}/state", "CKPT_OBSERVE_PAGES_DIR": f"{directory}/pages"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):  # 3: differences, as `diff` finds them
        sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def main(runs: int) -> None:
    over = []
    with tempfile.TemporaryDirectory() as directory:
        store = f"{directory}/store"
        cpu_milliseconds(("-m", "ckpt_observe", "run", "--", sys.executable, "-c", PROGRAM, store), directory)
        words = {"STORE": store, "TRACE": "", "FILE": f"{directory}/report.html"}
        peer = min(cpu_milliseconds(PEER, directory) for _ in range(runs))
        print(f"import argparse: {peer:.1f} ms of CPU")
        for command in (*COMMANDS, *(f"{name} --help" for name in HELP_ONLY)):
            arguments = ("-m", "ckpt_observe", *(words.get(word, word) for word in command.split()))
            milliseconds = min(cpu_milliseconds(arguments, directory) for _ in range(runs))
            print(f"  {command:30} {milliseconds:6.1f} ms  {milliseconds / peer:5.1f} ×")
            if milliseconds / peer > BUDGET:
                over.append(command)
    if over:
        sys.exit(f"over budget ({BUDGET:g} ×): {', '.join(over)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
