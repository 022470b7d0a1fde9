"""The result of a soak as a table, and which targets it missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.faults.soak.trial import DEFECTS, Findings, Trial

GROUP_TARGETS = {"SIGKILL": 3_000, "power failure": 200, "fuzz": 2_000_000, "outage": 1_000_000}
"""Counts of a run of one hour, over all trials of a group."""
COLUMNS = ("rounds", "faults", "operations", "counted", *DEFECTS)


class Totals:
    """Findings by trial."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self.findings: dict[Trial, Findings] = {trial: Findings() for trial in trials}
        self.rounds: dict[Trial, int] = dict.fromkeys(self.findings, 0)

    def add(self, trial: Trial, findings: Findings) -> None:
        self.findings[trial].add(findings)
        self.rounds[trial] += 1

    def row(self, trials: Iterable[Trial]) -> tuple[int, Findings]:
        """Return the sums over some trials."""
        total, rounds = Findings(), 0
        for trial in trials:
            total.add(self.findings[trial])
            rounds += self.rounds[trial]
        return rounds, total

    def groups(self) -> dict[str, list[Trial]]:
        groups: dict[str, list[Trial]] = {}
        for trial in self.findings:
            groups.setdefault(trial.group, []).append(trial)
        return groups


def render(totals: Totals) -> str:
    """Return the table as Markdown: a row for each trial, and one for each group."""
    lines = [f"| fault | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for group, trials in totals.groups().items():
        lines += [_row(trial.title, *totals.row([trial])) for trial in trials]
        lines.append(_row(f"**{group}, all**", *totals.row(trials)))
    return "\n".join([*lines, _row("**total**", *totals.row(totals.findings))])


def _row(title: str, rounds: int, findings: Findings) -> str:
    cells = [rounds, *(getattr(findings, name) for name in COLUMNS[1:])]
    return f"| {title} | {' | '.join(f'{cell:,}' for cell in cells)} |"


def missed_targets(totals: Totals, hours: float) -> list[str]:
    """Return which counts are too small, and which defects there are. A shorter run than an hour has smaller targets."""
    share, missed = min(1.0, hours), []
    for group, trials in totals.groups().items():
        units: Mapping[str, str] = {trial.group: trial.unit for trial in trials}
        _, total = totals.row(trials)
        count, target = getattr(total, units[group]), GROUP_TARGETS[group] * share
        if count < target:
            missed.append(f"{group}: {count:,} {units[group]} instead of {target:,.0f}")
        missed += [f"{trial.title}: not tried" for trial in trials if not getattr(totals.findings[trial], trial.unit)]
        missed += [f"{group}: {getattr(total, name):,} {name}" for name in DEFECTS if getattr(total, name)]
    return missed
