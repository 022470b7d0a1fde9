"""What the installed version of LangGraph lacks is reported, and nothing else. The other tests run with several versions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

pytestmark = pytest.mark.libraries


def findings(observation, *renamed):
    """The findings of the doctor about patches."""
    command = [sys.executable, str(observation.programs / "renamed.py"), *renamed]
    process = subprocess.run(command, env=observation.environment, capture_output=True, text=True, check=False, cwd=observation.directory)
    assert process.stdout, process.stderr
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    return [line for line in lines if line["subject"].startswith(("patches", "langgraph"))]


def test_installed_version_has_every_target(observation):
    """The doctor finds no problem in LangGraph, names its version, and tells which other libraries are not installed."""
    lines = findings(observation)
    assert [line for line in lines if line["state"] == "problem"] == []
    details = {line["subject"]: line["detail"] for line in lines}
    assert re.match(rf"langgraph-checkpoint {version('langgraph-checkpoint')}: [1-9]\d* patched", details["patches langgraph"])
    assert "renamed" not in details["patches langgraph"]
    assert details["patches crewai"].endswith("is not installed")


@pytest.mark.parametrize(
    ("renamed", "targets"),
    [
        ("class", [f"langgraph.pregel.main.Pregel.{method}" for method in ("__init__", "astream", "stream")]),
        ("method", ["langgraph.checkpoint.base.BaseCheckpointSaver.put_writes"]),
    ],
)
def test_renamed_target_is_reported(observation, renamed, targets):
    """What was renamed is a problem that the doctor names, not a silent gap."""
    problems = [line for line in findings(observation, renamed) if line["state"] == "problem"]
    assert sorted(line["subject"] for line in problems) == targets
    assert all(line["detail"].startswith("renamed") for line in problems)
