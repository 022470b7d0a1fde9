"""The files for systemd and Kubernetes start what there is, with settings that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ckpt_observe.cli.main import create_parser
from ckpt_observe.environment import VARIABLES

DEPLOY = Path(__file__).parents[1] / "deploy"
SERVICE, SIDECAR = DEPLOY / "systemd" / "ckpt-observe-daemon.service", DEPLOY / "kubernetes" / "sidecar.yaml"


def commands(path):
    text = path.read_text()
    started = [line.split() for line in re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)]
    return started + [json.loads(line) for line in re.findall(r"command: (\[.+\])$", text, re.MULTILINE)]


@pytest.mark.parametrize(("path", "wanted"), [(SERVICE, ["daemon"]), (SIDECAR, ["daemon", "run"])], ids=["systemd", "kubernetes"])
def test_commands(path, wanted):
    """Each command is one of ours, with arguments that it takes."""
    found = commands(path)
    assert [command[1] for command in found] == wanted
    for program, *arguments in found:
        assert program.endswith("ckpt-observe")
        create_parser(()).parse_args(arguments)


@pytest.mark.parametrize("path", [SERVICE, SIDECAR], ids=["systemd", "kubernetes"])
def test_variables(path):
    """Each variable is one that we read."""
    named = set(re.findall(r"\b(?:CKPT_OBSERVE|OTEL|LMNR)_[A-Z_]+", path.read_text()))
    assert named
    assert named - {variable.name for variable in VARIABLES} == set()
