"""Files in deploy/ and dashboards/provisioning/ use names of the registry. A stale name would give an empty page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ckpt_observe.cli.main import create_complete_parser
from ckpt_observe.environment import VARIABLES
from ckpt_observe.semconv.values import OUTCOMES

ROOT = Path(__file__).parents[1]
FILES = sorted(file for folder in ("deploy", "dashboards/provisioning") for file in (ROOT / folder).rglob("*.y*ml"))
DEPLOY = ROOT / "deploy"
DRILLS = [DEPLOY / "cron" / "ckpt-observe-drill", DEPLOY / "systemd" / "ckpt-observe-drill.service", DEPLOY / "kubernetes" / "drill.yaml"]
SERVICE, SIDECAR = DEPLOY / "systemd" / "ckpt-observe-daemon.service", DEPLOY / "kubernetes" / "sidecar.yaml"
REFERENCE = (ROOT / "docs" / "semconv.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_names_are_of_the_registry(file):
    """Every attribute and metric of a file is in the generated reference page."""
    used = set(re.findall(r"\b(?:checkpoint[._][a-z_.]+|ckpt_observe_[a-z_]+)\b", file.read_text()))
    assert {name for name in used if f"`{re.sub('_(bucket|sum|count)$', '', name)}`" not in REFERENCE} == set()


def test_names_are_found():
    """Control: these files do contain names."""
    assert "checkpoint.outcome" in (ROOT / "deploy" / "scale" / "gateway.yaml").read_text()
    assert "checkpoint_operations_total" in (ROOT / "dashboards" / "provisioning" / "datasources" / "ckpt_observe.yml").read_text()


def test_gateways_keep_every_outcome_that_is_not_good():
    """Gateways keep every trace whose outcome is not good."""
    text = (ROOT / "deploy" / "scale" / "gateway.yaml").read_text()
    [values] = re.findall(r"key: checkpoint.outcome, values: \[(.+)\]", text)
    assert set(OUTCOMES) - set(values.split(", ")) == {"ok", "skipped"}


def commands(path):
    text = path.read_text()
    systemd = [line.split() for line in re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)]
    cron = [line.split() for line in re.findall(r"\$\((\S*ckpt-observe .+) 2>&1\)", text)]
    return cron + systemd + [json.loads(line) for line in re.findall(r"command: (\[.+\])$", text, re.MULTILINE)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [(SERVICE, ["daemon"]), (SIDECAR, ["daemon", "run"]), *((path, ["drill"]) for path in DRILLS)],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_commands(path, expected):
    """cron, systemd and Kubernetes start commands of ours with valid arguments."""
    rows = commands(path)
    assert [command[1] for command in rows] == expected
    for program, *arguments in rows:
        assert program.endswith("ckpt-observe")
        create_complete_parser().parse_args(arguments)


@pytest.mark.parametrize("path", [SERVICE, SIDECAR, *DRILLS], ids=lambda path: path.name)
def test_variables(path):
    """cron, systemd and Kubernetes set variables that the package reads."""
    variables = set(re.findall(r"\b(?:CKPT_OBSERVE|OTEL|LMNR)_[A-Z_]+", path.read_text()))
    assert variables
    assert variables - {variable.name for variable in VARIABLES} == set()
