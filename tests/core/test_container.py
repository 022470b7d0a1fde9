"""The stored form: every damage is noticed."""

from __future__ import annotations

import hashlib
import json

import pytest

from ckpt_observe.core import Checkpointer, Query, steps
from ckpt_observe.core.format import container
from ckpt_observe.core.plugins import codecs
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import CheckpointError, CompatibilityError, IntegrityError, SerializationError
from tests.core.test_codecs import NAMES


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
        store._checkpoints["t"][info.id] = info, bytes(damaged)
        try:
            states.append(Checkpointer(store).load("t"))
        except CheckpointError:
            continue
    assert {"n": 0} in states


DEEP = "[" * 100_000 + "]" * 100_000
"""A value of JSON that no parser takes."""


def forged(payload, **facts):
    """A store with one good checkpoint and an older one that somebody made by hand: seal and digest fit, the rest is as given."""
    store = MemoryStore()
    good = Checkpointer(store).save("t", {"n": 1}, id="good")
    header = {
        "checkpoint": 1, "id": "forged", "task": "t", "status": "running", "created": "2026-01-01T00:00:00Z", "format": "json",
        "serialized_size": len(payload), "payload_size": len(payload), "digest": f"sha256:{hashlib.sha256(payload).hexdigest()}",
        "state_type": "dict", **facts,
    }  # fmt: skip
    body = json.dumps(header, separators=(",", ":")).replace(f'"{DEEP}"', DEEP).encode()[:-1]
    seal = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    store._checkpoints["t"]["forged"] = good, body + b',"seal":"' + seal + b'"}\n' + payload
    return store


def test_forgery_is_read():
    """Control: what is made by hand is read where it is right."""
    assert Checkpointer(forged(b'{"n":2}')).load("t", "forged") == {"n": 2}


@pytest.mark.parametrize("size", [-100, -2, -1, 2**62, 2**63, 2**200])
@pytest.mark.parametrize("codec", NAMES)
def test_no_declared_size_makes_a_bomb(codec, size):
    """A header may be anybody's: a negative or impossible size is an error of ours, and nothing is unpacked for it."""
    packed = codecs.factory(codec)().compress(bytes(10_000_000))
    with pytest.raises(CheckpointError):
        Checkpointer(forged(packed, codec=codec, serialized_size=size)).load("t", "forged")


@pytest.mark.parametrize(
    "facts",
    [
        {"created": "2026-01-01T00:00:00"},
        {"metadata": {"a": DEEP}},
        {"of_a_version_to_come": DEEP},
        {"payload_size": -7},
        {"keys": {"n": {"type": "int", "size": -5}}},
        {"keys": {"n": {"type": "int", "size": 1, "base": "other"}}, "bases": ["good"]},
        {"keys": {"other": {"type": "int", "size": 1}}, "bases": ["good"]},
    ],
)
def test_forged_header_is_typed(facts):
    """Whatever a header says, load and open give the state or an error of ours."""
    checkpointer = Checkpointer(forged(b'{"n":2}', **facts))
    with pytest.raises(CheckpointError):
        checkpointer.load("t", "forged")
    with pytest.raises(CheckpointError):
        dict(checkpointer.open("t", "forged"))


@pytest.mark.parametrize("facts", [{"created": "2026-01-01T00:00:00"}, {"metadata": {"a": DEEP}}], ids=["time", "deep"])
def test_forged_header_does_not_hide_the_others(tmp_path, facts):
    """A checkpoint whose time has no zone cannot be put in order, one nested too deep not be read: it is left out, the good ones are not."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "forged.ckpt").write_bytes(forged(b"{}", **facts).get("t", "forged"))
    checkpointer = Checkpointer(tmp_path)
    good = checkpointer.save("t", {"n": 1})
    assert [info.id for info in checkpointer.list("t")] == [info.id for info in checkpointer.find(Query())] == [good.id]
    assert checkpointer.load("t", good.id) == {"n": 1}


def test_deep_header_with_a_broken_seal_is_damage():
    """What nests too deep to be asked for its version is damaged, not a RecursionError."""
    with pytest.raises(IntegrityError):
        container.read_header(b'{"checkpoint":1,"x":' + DEEP.encode() + b"}\n")


def test_metadata_that_could_not_be_read_again_are_refused():
    """How deep a reader can go depends on where it is called: what is nested deeper than any needs is refused when it is saved."""
    checkpointer = Checkpointer("memory://")
    for levels, wide in ((98, []), (98, [[]] * 200)):
        deep = nested(levels)
        info = checkpointer.save("t", 1, metadata={"deep": deep, "wide": wide})
        assert checkpointer.restore("t", info.id).info.metadata["deep"] == deep
    with pytest.raises(SerializationError, match="nested"):
        checkpointer.save("t", 2, metadata={"deep": nested(150)})
    assert checkpointer.load("t") == 1


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("tagged", ['"UUID","v":5', '"complex","v":1', '"timedelta","v":[1e300]', '["a"],"v":1', '"exec","v":"1"'])
def test_forged_values_are_typed(tagged):
    """A tagged value that makes no sense is a serialization error."""
    with pytest.raises(SerializationError):
        Checkpointer(forged(b'{"~py":%b}' % tagged.encode())).load("t", "forged")
