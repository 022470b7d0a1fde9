"""Runs the doctor in this process, and makes the loopback servers of the exporters' tests importable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

from ckpt_observe.cli.doctor import command


@pytest.fixture
def doctor(monkeypatch, state, tmp_path):
    """Run the doctor with these variables and no others; its findings by subject."""

    def examine(**variables):
        for name in list(os.environ):
            if name.startswith(("OTEL_", "LMNR_", "CKPT_OBSERVE_")):
                monkeypatch.delenv(name)
        for name, value in {"CKPT_OBSERVE_DIR": state, "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages", **variables}.items():
            monkeypatch.setenv(name, str(value))
        return {finding.subject: finding for finding in command.check_everything()}

    return examine
