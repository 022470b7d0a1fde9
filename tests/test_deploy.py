"""The names in deploy/ and dashboards/provisioning/ are those of the registry, so a renamed one is found here and not by an empty page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckpt_observe.semconv.values import OUTCOMES

ROOT = Path(__file__).parents[1]
FILES = sorted(file for folder in ("deploy", "dashboards/provisioning") for file in (ROOT / folder).rglob("*.y*ml"))
REFERENCE = (ROOT / "docs" / "semconv.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_names_are_of_the_registry(file):
    """Each attribute and metric that is named is in the generated reference page."""
    found = set(re.findall(r"\b(?:checkpoint[._][a-z_.]+|ckpt_observe_[a-z_]+)\b", file.read_text()))
    assert {name for name in found if f"`{re.sub('_(bucket|sum|count)$', '', name)}`" not in REFERENCE} == set()


def test_names_are_found():
    """Control: the files that must name something do."""
    assert "checkpoint.outcome" in (ROOT / "deploy" / "scale" / "gateway.yaml").read_text()
    assert "checkpoint_operations_total" in (ROOT / "dashboards" / "provisioning" / "datasources" / "ckpt_observe.yml").read_text()


def test_gateways_keep_every_outcome_that_is_not_good():
    """An outcome is kept, or it is one of the good ones."""
    text = (ROOT / "deploy" / "scale" / "gateway.yaml").read_text()
    [kept] = re.findall(r"key: checkpoint.outcome, values: \[(.+)\]", text)
    assert set(OUTCOMES) - set(kept.split(", ")) == {"ok", "skipped"}
