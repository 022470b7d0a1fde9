"""The commands with files of the installed joblib. The table of outcomes is in `tests/cli/format_commands.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import joblib
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))

from format_commands import Checkpoints, check_changes, check_commands, run

__all__ = ["run"]

pytestmark = pytest.mark.libraries


@pytest.mark.parametrize("compress", [0, "zlib", "gzip", "bz2", "xz", "lzma"])
def test_every_command(run, tmp_path, compress):
    """Every command has the outcome of the table, and `diff` finds the array that grew and the one that is new."""
    old, new = tmp_path / "old.joblib", tmp_path / "new.joblib"
    joblib.dump({"bias": np.zeros(3), "weights": np.arange(100.0)}, old, compress=compress)
    joblib.dump({"bias": np.zeros(3), "weights": np.arange(200.0), "extra": np.ones(1)}, new, compress=compress)
    check_commands(run, Checkpoints(str(old), "joblib", "weights"))
    check_changes(run, old, new, {("weights", "changed"), ("extra", "added")})
