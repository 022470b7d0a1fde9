"""`ckpt-observe deliver` and `ckpt-observe clean`, after programs that ended, were killed, or are running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from loopback import OtlpServer

from ckpt_observe.cli.main import main
from ckpt_observe.query import open_traces, read_waiting

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys
import ckpt_observe.auto, ckpt_observe
with ckpt_observe.checkpoint("save", id="x") as operation, operation.phase("write"):
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "wait" in sys.argv:
        print("writing", flush=True)
        sys.stdin.readline()
"""
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """The environment of programs and commands, without other settings."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "LMNR_", "CKPT_OBSERVE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CKPT_OBSERVE_PAGES_DIR", str(tmp_path / "pages"))
    return monkeypatch


@pytest.fixture
def run(capsys):
    def run(*arguments, code=0):
        assert main(list(arguments)) == code
        return capsys.readouterr()

    return run
