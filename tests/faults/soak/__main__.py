"""`python -m tests.faults.soak --hours N [--seed S]`: tries all faults for N hours, and prints what it tried and what it found.

Exits with 1 if a count is below its target, if there is any defect, or if a control does not detect the defect that was made on purpose.
`--only TEXT` selects trials whose title contains the text. A round can be repeated with its seed: `--round "S/group: name/N"`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time

from tests.faults.power import why_no_mounts
from tests.faults.soak import fuzz, kills, outages, power_cuts
from tests.faults.soak.schedule import Round, run_controls, run_trials
from tests.faults.soak.table import Totals, missed_targets, render
from tests.faults.soak.trial import Trial

TRIALS = [*kills.TRIALS, *power_cuts.TRIALS, *fuzz.TRIALS, *outages.TRIALS]
PROGRESS_SECONDS = 60.0


def main() -> int:
    arguments = _parse()
    trials = [trial for trial in TRIALS if arguments.only in trial.title]
    if arguments.round:
        return _repeat(arguments.round)
    reason = why_no_mounts()
    if reason:
        print(f"no power failures: {reason}", file=sys.stderr)
        trials = [trial for trial in trials if trial.group != "power failure"]
    print(f"python -m tests.faults.soak --hours {arguments.hours:g} --seed {arguments.seed}", flush=True)
    problems = [] if arguments.no_controls else _check_controls(trials, arguments.seed, arguments.slots)
    totals = _soak(trials, arguments.seed, arguments.hours, arguments.slots)
    print(f"\n{render(totals)}\n")
    problems += missed_targets(totals, arguments.hours)
    for findings in totals.findings.values():
        for note in findings.notes:
            print(note)
    for problem in problems:
        print(f"FAILED: {problem}")
    print("passed" if not problems else "failed", flush=True)
    return 1 if problems else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="rounds at the same time (default: number of processors)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only trials whose title contains this")
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--round", metavar="SEED", help="repeat one round")
    return parser.parse_args()


def _repeat(seed: str) -> int:
    title = seed.split("/", 1)[1].rpartition("/")[0]
    [trial] = [trial for trial in TRIALS if trial.title == title]
    findings = Round(trial, trial.control if seed.endswith("/control") else trial.run, seed).finish()
    print(findings)
    return 1 if findings.defects else 0


def _check_controls(trials: list[Trial], seed: str, slots: int) -> list[str]:
    detected, problems = 0, []
    for trial, findings in run_controls(trials, seed, slots):
        if findings.is_detection:
            detected += 1
        else:
            problems.append(f"{trial.title}: the control was not detected: {findings}")
            print(problems[-1], flush=True)
    print(f"controls: {detected} of {len(trials)} defects that were made on purpose were detected", flush=True)
    return problems


def _soak(trials: list[Trial], seed: str, hours: float, slots: int) -> Totals:
    totals, started = Totals(trials), time.monotonic()
    last_report = started
    for trial, findings in run_trials(trials, seed, started + hours * 3600, slots):
        totals.add(trial, findings)
        for note in findings.notes:
            print(note, flush=True)
        if time.monotonic() - last_report > PROGRESS_SECONDS:
            last_report = time.monotonic()
            print(f"{(last_report - started) / 60:.0f} min: {_summary(totals)}", flush=True)
    return totals


def _summary(totals: Totals) -> str:
    parts = []
    for group, trials in totals.groups().items():
        _, total = totals.row(trials)
        parts.append(f"{group} {getattr(total, trials[0].unit):,} {trials[0].unit}, {total.defects} defects")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
