"""Measures the CPU time of `import ckpt_observe.auto`: `python -m benchmarks.imports [RUNS]`.

Each import runs in its own process, with the default settings. The result is the best of several runs, minus the best run of a bare
interpreter. The last row is what `importlib.metadata` would add if `support/entry_points.py` used it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PROGRAMS = {
    "bare Python": "",
    "opentelemetry.trace": "import opentelemetry.trace",
    "ckpt_observe.auto": "import ckpt_observe.auto",
    "ckpt_observe.auto and importlib.metadata": (
        "import ckpt_observe.auto\nfrom importlib.metadata import entry_points\nentry_points(group='ckpt_observe.instrumentors')"
    ),
}
BUDGET = 2.0
"""`ckpt_observe.auto` over `opentelemetry.trace`."""

REPORT_CPU = "\nimport resource; usage = resource.getrusage(resource.RUSAGE_SELF); print(usage.ru_utime + usage.ru_stime)"


def cpu_milliseconds(program: str, directory: str) -> float:
    """Run the program in a new interpreter and return its CPU time."""
    environ = {**os.environ, "CKPT_OBSERVE_DIR": directory}
    command = [sys.executable, "-c", program + REPORT_CPU]
    return float(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout) * 1000


def main(runs: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(runs):
            for name, program in PROGRAMS.items():
                times[name].append(cpu_milliseconds(program, directory))
    best = {name: min(milliseconds) for name, milliseconds in times.items()}
    bare = best.pop("bare Python")
    print(f"bare Python: {bare:.1f} ms of CPU; the imports below add")
    for name, milliseconds in best.items():
        print(f"  {name:42} {milliseconds - bare:6.1f} ms")
    peer, ours, with_metadata = (milliseconds - bare for milliseconds in best.values())
    print(f"ckpt_observe.auto / opentelemetry.trace: {ours / peer:.2f} × (budget: {BUDGET:g} ×)")
    print(f"importlib.metadata would add {with_metadata - ours:.1f} ms: {with_metadata / peer:.2f} ×")
    if ours / peer > BUDGET:
        sys.exit("over budget: ckpt_observe.auto / opentelemetry.trace")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
