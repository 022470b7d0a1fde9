"""`python -m tests.faults.host_compat [TEXT]`: test suites of others and a host program see no difference if they are observed.

Runs CPython's tests of threads, signals, asyncio and imports, and joblib's tests (`pip install joblib`), alone and under `ckpt-observe run`,
and compares what a program can see. TEXT selects suites by name. Exits with 1 if something differs, or if a control is not detected.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.faults.host_compat.left_behind import differences, is_recorded
from tests.faults.host_compat.observers import ALONE, HARM, OBSERVED, harmful
from tests.faults.host_compat.suites import SUITES, Suite, compare


def main(selection: str) -> int:
    problems = []
    print("| suite | tests | failures under both | unsteady | different |\n|---|---:|---:|---:|---:|", flush=True)
    for suite in [suite for suite in SUITES if selection in suite.name]:
        result = compare(suite, ALONE, OBSERVED)
        print(f"| {suite.name} | {result.tests} | {result.failures} | {len(result.unsteady)} | {len(result.different)} |", flush=True)
        problems += [f"{suite.name}: {line}" for line in result.different]
        problems += [] if result.tests > 1 else [f"{suite.name}: did not run"]
        for name in result.unsteady:
            print(f"    unsteady: {name}")
    problems += _compare_programs() + _check_control(SUITES[0])
    for problem in problems:
        print(f"FAILED: {problem}")
    print("failed" if problems else "passed")
    return 1 if problems else 0


def _compare_programs() -> list[str]:
    problems = []
    with tempfile.TemporaryDirectory() as directory:
        for saves in (0, 50):
            different = differences(ALONE, OBSERVED, Path(directory, f"observed-{saves}"), saves)
            print(f"\nA program with {saves} saves sees {len(different)} differences if it is observed.", flush=True)
            problems += different
            problems += [] if is_recorded(Path(directory, f"observed-{saves}"), saves) else ["the program was not observed"]
        for harm in HARM:
            observer = harmful(harm, Path(directory, "observer-" + harm.replace(" ", "-")))
            if not any(harm in line for line in differences(ALONE, observer, Path(directory, "control-" + harm), 50)):
                problems.append(f"control: harm to {harm} was not detected")
        print(f"{len(HARM)} kinds of harm on purpose were tried.")
    return problems


def _check_control(suite: Suite) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        result = compare(suite, ALONE, harmful("threads", Path(directory, "observer")))
    print(f"{suite.name} sees {len(result.different)} differences if an observer leaves a thread.")
    return [] if result.different else [f"control: {suite.name} does not notice a thread of an observer"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
