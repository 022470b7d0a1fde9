"""Runs commands, and makes the loopback servers of the exporters' tests importable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

from ckpt_observe.cli.doctor.command import check_everything


@pytest.fixture
def doctor(monkeypatch, state, tmp_path):
    """Run the doctor with these variables and no others; its findings by subject."""

    def examine(**variables):
        for name in list(os.environ):
            if name.startswith(("OTEL_", "LMNR_", "CKPT_OBSERVE_")):
                monkeypatch.delenv(name)
        for name, value in {"CKPT_OBSERVE_DIR": state, "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages", **variables}.items():
            monkeypatch.setenv(name, str(value))
        return {finding.subject: finding for finding in check_everything()}

    return examine


@pytest.fixture
def command(tmp_path):
    """Run `ckpt-observe` with a new state directory."""

    def run(*arguments, **variables):
        environment = {
            **os.environ,
            "CKPT_OBSERVE_DIR": str(tmp_path / "state"),
            "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
            **variables,
        }
        command = [sys.executable, "-m", "ckpt_observe", *arguments]
        encoding = variables.get("PYTHONIOENCODING", "utf-8")
        return subprocess.run(command, capture_output=True, encoding=encoding, env=environment, check=False, cwd=tmp_path)

    return run
