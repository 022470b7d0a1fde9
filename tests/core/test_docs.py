"""docs/core.md is complete, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer, stores
from ckpt_observe.core.plugins import codecs, serializers
from ckpt_observe.core.retention import Retention
from ckpt_observe.core.runner.triggers import Trigger

DOCS = (Path(__file__).parents[2] / "docs" / "core.md").read_text()


def test_examples_run(tmp_path, monkeypatch):
    """The examples run one after the other and produce the results that the page shows."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL):
        exec(code.replace("/var/lib/ckpt", str(tmp_path)), names)
    assert "outcome" in names
    assert names["state"] == {"step": 100, "weights": [0.1, 0.2]}
    assert names["run"].next_step == 101


def test_every_plug_in_is_documented():
    """The page names every store, format and codec."""
    for name in (*stores.names(), *serializers.names(), *codecs.names()):
        if name not in ("postgres", "rediss", "mine", "reverse", "recording"):  # other spellings, and plug-ins that tests register
            assert name in DOCS, name


def test_every_method_is_documented():
    """The page names every operation of the Checkpointer."""
    public = {name for name, value in vars(Checkpointer).items() if not name.startswith("_") and callable(value)}
    assert {name for name in public if name not in DOCS} <= {"close", "stage", "prune", "list"}


@pytest.mark.parametrize("kind", [Trigger, Retention])
def test_every_policy_is_documented(kind):
    """The page names every trigger and retention policy, except those that operators create."""
    bundled = {policy.__name__ for policy in kind.__subclasses__() if policy.__module__.startswith("ckpt_observe.")}
    assert {name for name in bundled if name not in DOCS} <= {"Never", "AnyOf", "AllOf", "Either", "Both", "KeepAll"}
