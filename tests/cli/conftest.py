"""The doctor in this process, and the loopback servers of the exporters' tests for it to look at."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

from ckpt_observe.cli import doctor as command


@pytest.fixture
def doctor(monkeypatch, state, tmp_path):
    """What it finds with these variables and no others, by subject."""

    def examine(**variables):
        for name in list(os.environ):
            if name.startswith(("OTEL_", "LMNR_", "CKPT_OBSERVE_")):
                monkeypatch.delenv(name)
        for name, value in {"CKPT_OBSERVE_DIR": state, "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages", **variables}.items():
            monkeypatch.setenv(name, str(value))
        return {finding.subject: finding for finding in command.findings()}

    return examine
