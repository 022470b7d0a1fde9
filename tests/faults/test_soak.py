"""One short round of every trial of the soak, and its control."""

from __future__ import annotations

import secrets
import shutil
from functools import partial

import pytest

from tests.faults.power import why_no_mounts
from tests.faults.soak import fuzz, kills, outages, power_cuts
from tests.faults.soak.schedule import Round

pytestmark = pytest.mark.faults

NO_MOUNTS = why_no_mounts()
needs_mounts = pytest.mark.skipif(NO_MOUNTS is not None, reason=NO_MOUNTS or "")


def by_name(trials):
    return pytest.mark.parametrize("trial", trials, ids=lambda trial: trial.name)


def run(trial, work):
    """Run one round and print its findings and seed."""
    seed = f"{secrets.token_hex(4)}/{trial.title}/test"
    each = Round(trial, work, seed)
    findings = each.finish()
    shutil.rmtree(each.directory, ignore_errors=True)
    print(f"\n{seed}: {findings}")
    return findings


def check(trial, **size):
    findings = run(trial, partial(trial.run, **size))
    assert findings.defects == 0, findings.notes
    assert getattr(findings, trial.unit) > 0


def check_control(trial):
    findings = run(trial, trial.control)
    assert findings.is_detection, findings.notes


@by_name(kills.TRIALS)
def test_kills(trial):
    """Host programs and their deliverers are killed, in each delivery mode: nothing is lost, duplicated or wrong, and no secret leaks."""
    check(trial, kills=20)


@by_name(kills.TRIALS)
def test_control_of_kills(trial):
    """Control: with a recovery that ignores pages, operations are lost."""
    check_control(trial)


@needs_mounts
@by_name(power_cuts.TRIALS)
def test_power_failures(trial):
    """What was synced, or acknowledged, is intact after a power failure."""
    check(trial, cuts=3)


@needs_mounts
@by_name(power_cuts.TRIALS)
def test_control_of_power_failures(trial):
    """Control: without syncing, it is not."""
    check_control(trial)


@by_name(fuzz.TRIALS)
def test_damaged_files(trial):
    """No damaged file raises, crashes, hangs, takes much memory or is read as other data."""
    check(trial, seconds=1.0)


@by_name(fuzz.TRIALS)
def test_control_of_damaged_files(trial):
    """Control: a reader with a defect is detected."""
    check_control(trial)


@by_name(outages.TRIALS)
def test_outages(trial):
    """After an outage everything is delivered, or counted as dropped if it was beyond a limit."""
    check(trial, operations=6000)


def test_control_of_outages():
    """Control: an operation that the server does not have is reported as lost."""
    check_control(outages.TRIALS[0])
