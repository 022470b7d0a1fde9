"""What docs/core.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer, stores
from ckpt_observe.core.plugins import codecs, serializers
from ckpt_observe.core.retention import Retention
from ckpt_observe.core.runner.triggers import Trigger

DOCS = (Path(__file__).parents[2] / "docs" / "core.md").read_text()


def test_examples_run(tmp_path):
    """Each example does what it says, one after the other."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL):
        exec(code.replace("/var/lib/ckpt", str(tmp_path)), names)
    assert "outcome" in names
    assert names["state"] == {"step": 100, "weights": [0.1, 0.2]}
    assert names["run"].next_step == 101


def test_every_plug_in_is_documented():
    """Each store, format and codec by name is on the page."""
    for name in (*stores.names(), *serializers.names(), *codecs.names()):
        if name not in ("postgres", "rediss", "mine", "reverse", "recording"):  # other spellings, and those that tests register
            assert name in DOCS, name


def test_every_method_is_documented():
    """Each operation of the Checkpointer is on the page."""
    public = {name for name, value in vars(Checkpointer).items() if not name.startswith("_") and callable(value)}
    assert {name for name in public if name not in DOCS} <= {"close", "stage", "prune", "list"}


@pytest.mark.parametrize("kind", [Trigger, Retention])
def test_every_policy_is_documented(kind):
    """Each trigger and retention policy that a program names is on the page; operators make the others."""
    ours = {policy.__name__ for policy in kind.__subclasses__() if policy.__module__.startswith("ckpt_observe.")}
    assert {name for name in ours if name not in DOCS} <= {"Never", "AnyOf", "AllOf", "Either", "Both", "KeepAll"}
