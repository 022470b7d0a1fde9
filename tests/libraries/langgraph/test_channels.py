"""Spans say which channel makes a checkpoint large, and which channels do not come back as they were saved."""

from __future__ import annotations

import re

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

ALTERED = ["draft", "nested", "report"]


def check_large_channel(spans):
    """Return the last save that knows its channels, after checking that the large one is first and has a plausible size."""
    saves = [span for span in spans.operations("save") if names.KEY_SIZES in span.attributes]
    last = max(saves, key=lambda span: span.attributes[names.STEP])
    channels = dict(zip(last.attributes[names.KEY_NAMES], last.attributes[names.KEY_SIZES], strict=True))
    assert next(iter(channels)) == "transcript"
    entries = last.attributes[names.STEP]  # the node of step N added the N-th entry
    assert entries * 10_000 <= channels["transcript"] <= entries * 10_000 + 500
    assert list(channels.values()) == sorted(channels.values(), reverse=True)
    grown = dict(zip(last.attributes[names.GROWN_KEYS], last.attributes[names.GROWN_SIZES], strict=True))
    assert next(iter(grown)) == "transcript"
    assert grown["transcript"] % 10_000 < 500 <= grown["transcript"]  # whole entries, perhaps several: a block is not always measured
    return last


def test_large_channel(observation, database):
    """The largest channel is named first, with its size, and so is the one that grew. Where the checkpoint is one blob, the sizes are sampled, and marked so."""
    observation.run("channels.py", database.saver_url)
    spans = observation.spans()
    last = check_large_channel(spans)
    assert last.attributes.get("checkpoint.state.sampled", False) is database.is_sqlite
    if database.is_sqlite:
        assert last.attributes[names.STEP] >= 3  # each node makes the checkpoint larger by more than 10 %
    largest = max(span.attributes[names.SIZE_SERIALIZED] for span in spans.operations("save"))
    assert largest >= 40_000


def test_large_channel_in_memory(observation):
    """In memory, each channel is serialized on its own, so nothing is sampled."""
    observation.run("channels.py", "memory:")
    assert "checkpoint.state.sampled" not in check_large_channel(observation.spans()).attributes


def test_large_channel_in_the_metrics(observation, tmp_path):
    """The metric of key sizes has the channels of the last save. No thread is a label."""
    variables = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "CKPT_OBSERVE_METRICS_TEXTFILE": tmp_path / "metrics.prom"}
    observation.run("channels.py", "memory:", **variables)
    last = check_large_channel(observation.spans())
    lines = re.findall(r"^checkpoint_key_size_bytes\{(.*)\} (\S+)$", (tmp_path / "metrics.prom").read_text(), re.MULTILINE)
    sizes = {re.search(r'key="(.*?)"', labels)[1]: float(value) for labels, value in lines}
    channels = dict(zip(last.attributes[names.KEY_NAMES], last.attributes[names.KEY_SIZES], strict=True))
    assert {key: size for key, size in sizes.items() if key in channels} == channels
    assert all('task="channels"' in labels for labels, _ in lines)


def test_altered_values(observation, tmp_path):
    """A load names exactly the channels whose values came back as something else."""
    observation.run("altered_values.py", "save", "sqlite:checkpoints.db")
    types = observation.run("altered_values.py", "load", "sqlite:checkpoints.db")
    loads = [span for span in observation.spans().operations("load") if span.attributes.get("checkpoint.found") is not False]
    [load] = loads
    assert types["plain"] == "Plain"
    altered = sorted(name for name, type_name in types.items() if type_name in {"NoneType", "dict"})
    assert altered == ALTERED
    assert sorted(load.attributes[names.ALTERED_KEYS]) == altered
