"""The stored form: every damage is noticed."""

from __future__ import annotations

import json

import pytest

from ckpt_observe.core import Checkpointer, container, steps
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import CheckpointError, CompatibilityError, IntegrityError


@pytest.fixture
def stored():
    store = MemoryStore()
    info = Checkpointer(store, compression="gzip").save("agent", {"words": ["a", "b", "c"] * 5, "n": 1}, step=3)
    return bytes(store.get("agent", info.id))


def check(data):
    info, payload = container.split(data)
    steps.validate(info, payload)
    return info


def test_intact_bytes_pass(stored):
    """Control: the undamaged bytes are accepted."""
    assert check(stored).step == 3


def test_every_bit_flip_is_noticed(stored):
    """F10, L8: a flipped bit anywhere, header or payload, is an error, never another state."""
    for position in range(len(stored)):
        for bit in (0, 3, 5, 7):
            damaged = bytearray(stored)
            damaged[position] ^= 1 << bit
            with pytest.raises(CheckpointError):
                check(bytes(damaged))


def test_every_truncation_is_noticed(stored):
    """F10: a checkpoint cut at any length is an integrity error."""
    for length in range(len(stored)):
        with pytest.raises(IntegrityError):
            check(stored[:length])


def test_bytes_behind_the_end_are_noticed(stored):
    """A checkpoint with something after it is an integrity error that says so."""
    with pytest.raises(IntegrityError) as caught:
        check(stored + b"x")
    assert caught.value.code == "integrity.size_mismatch"


@pytest.mark.parametrize("foreign", [b"", b"{}\n", b"PK\x03\x04", b"\x80\x04\x95", b'{"checkpoint":', b'{"checkpoint":1}\n'])
def test_foreign_bytes_are_refused(foreign):
    """A file that is no checkpoint is an integrity error."""
    with pytest.raises(IntegrityError):
        check(foreign)


def test_newer_version_says_upgrade(stored):
    """D7: a newer format version is a compatibility error that says what to do."""
    line, _, payload = stored.partition(b"\n")
    header = json.loads(line)
    header["checkpoint"] = 2
    with pytest.raises(CompatibilityError, match="upgrade"):
        check(json.dumps(header).replace(" ", "").encode() + b"\n" + payload)


def test_without_the_check_a_flip_gives_another_state(monkeypatch):
    """Control for F10: where the digest is not asked, some flipped bit comes back as a state that nobody saved."""
    store = MemoryStore()
    info = Checkpointer(store).save("t", {"n": 1})
    whole = store.get("t", info.id)
    monkeypatch.setattr(steps, "validate", lambda info, payload: None)
    states = []
    for bit in range(8 * info.header_size, 8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        store._kept["t"][info.id] = info, bytes(damaged)
        try:
            states.append(Checkpointer(store).load("t"))
        except CheckpointError:
            continue
    assert {"n": 0} in states
