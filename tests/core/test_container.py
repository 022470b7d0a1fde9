"""The layout of stored checkpoints: all damage is detected."""

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
    info = container.read_header(data)
    return steps.validate(data, info.task, info.id)[0]


def test_intact_bytes_are_accepted(stored):
    """Control: undamaged bytes are accepted."""
    assert check(stored).step == 3


def test_every_bit_flip_is_detected(stored):
    """A flipped bit in header or payload raises an error and never yields another state."""
    for position in range(len(stored)):
        for bit in (0, 3, 5, 7):
            damaged = bytearray(stored)
            damaged[position] ^= 1 << bit
            with pytest.raises(CheckpointError):
                check(bytes(damaged))


def test_every_truncation_is_detected(stored):
    """A checkpoint truncated at any length raises IntegrityError."""
    for length in range(len(stored)):
        with pytest.raises(IntegrityError):
            check(stored[:length])


def test_extra_bytes_are_detected(stored):
    """Bytes after the end of a checkpoint raise IntegrityError."""
    with pytest.raises(IntegrityError) as caught:
        check(stored + b"x")
    assert caught.value.code == "integrity.size_mismatch"


@pytest.mark.parametrize("foreign", [b"", b"{}\n", b"PK\x03\x04", b"\x80\x04\x95", b'{"checkpoint":', b'{"checkpoint":1}\n'])
def test_foreign_bytes_are_refused(foreign):
    """Bytes that are not a checkpoint raise IntegrityError."""
    with pytest.raises(IntegrityError):
        check(foreign)


def test_newer_version_says_upgrade(stored):
    """A newer format version raises CompatibilityError, which says to upgrade."""
    line, _, payload = stored.partition(b"\n")
    header = json.loads(line)
    header["checkpoint"] = 3
    with pytest.raises(CompatibilityError, match="upgrade"):
        check(json.dumps(header).replace(" ", "").encode() + b"\n" + payload)


def test_without_validation_a_flip_yields_another_state(monkeypatch):
    """Control: without the check of the digest, some flipped bit yields a state that was never saved."""
    store = MemoryStore()
    info = Checkpointer(store).save("t", {"n": 1})
    whole = store.get("t", info.id)
    monkeypatch.setattr(steps, "validate", lambda stored, *_: container.split(stored))
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
"""JSON that is nested too deep for any parser."""


def store_with_forgery(payload, *, version=1, **fields):
    """Return a store with a valid checkpoint and an older one with these header fields, whose seal and digest are correct."""
    store = MemoryStore()
    good = Checkpointer(store).save("t", {"n": 1}, id="good")
    digest = f"sha256:{hashlib.sha256(payload).hexdigest()}"
    header = {"checkpoint": version, "id": "store_with_forgery", "task": "t", "created": "2026-01-01T00:00:00Z", "digest": digest}
    if version == 1:
        header |= {
            "status": "running",
            "format": "json",
            "state_type": "dict",
            "serialized_size": len(payload),
            "payload_size": len(payload),
        }
    else:
        header |= {"sizes": [len(payload), len(payload)], "shape": [2, 2]}
    header |= fields
    text = json.dumps(header, separators=(",", ":")).replace(f'"{DEEP}"', DEEP).replace("\\udcff", "\udcff")
    body = text.encode(errors="surrogateescape")[:-1]
    seal = hashlib.blake2b(body, digest_size=16).hexdigest().encode() if version == 1 else container._seal(body)
    store._checkpoints["t"]["store_with_forgery"] = good, body + b',"seal":"' + seal + b'"}\n' + payload
    return store


@pytest.mark.parametrize("version", [1, 2])
def test_valid_forgery_is_loaded(version):
    """Control: a checkpoint built by hand is loaded if its header is valid."""
    assert Checkpointer(store_with_forgery(b'{"n":2}', version=version)).load("t", "store_with_forgery") == {"n": 2}


@pytest.mark.parametrize("size", [-100, -2, -1, 2**62, 2**63, 2**200])
@pytest.mark.parametrize("codec", NAMES)
def test_impossible_sizes_are_refused(codec, size):
    """A header may come from anyone: a negative or impossible size raises an error, and nothing is decompressed."""
    packed = codecs.factory(codec)().compress(bytes(10_000_000))
    with pytest.raises(CheckpointError):
        Checkpointer(store_with_forgery(packed, codec=codec, serialized_size=size)).load("t", "store_with_forgery")
    with pytest.raises(CheckpointError):
        Checkpointer(store_with_forgery(packed, version=2, codec=codec, sizes=[size, len(packed)])).load("t", "store_with_forgery")


@pytest.mark.parametrize(
    "fields",
    [
        {"created": "2026-01-01T00:00:00"},
        {"metadata": {"a": DEEP}},
        {"of_a_future_version": DEEP},
        {"payload_size": -7},
        {"status": "\udcff"},
        {"keys": {"n": {"type": "int", "size": -5}}},
        {"keys": {"n": {"type": "int", "size": 1, "digest": "no hex"}}},
        {"keys": {"n": {"type": "int", "size": 1, "base": "other"}}, "bases": ["good"]},
        {"keys": {"other": {"type": "int", "size": 1}}, "bases": ["good"]},
        {"version": 2, "created": None},
        {"version": 2, "digest": "abc"},
        {"version": 2, "digest": "é"},
        {"version": 2, "sizes": [7, -7]},
        {"version": 2, "sizes": [7]},
        {"version": 2, "keys": {"n": "int -5 x"}},
        {"version": 2, "keys": {"n": f"int {2**63} x"}},
        {"version": 2, "keys": {"n": ""}},
        {"version": 2, "keys": {"n": []}},
        {"version": 2, "keys": {"n": ["int", 1, "", "other"]}, "bases": ["good"]},
        {"version": 2, "metadata": {"a": DEEP}},
        {"version": 0},
        *({"version": version, name: ""} for version in (1, 2) for name in ("id", "task", "parent", "parent_task")),
        *({"version": version, "bases": [""]} for version in (1, 2)),
    ],
)
def test_forged_header_raises_checkpoint_error(fields):
    """Whatever a header contains, `load` and `open` raise a CheckpointError."""
    checkpointer = Checkpointer(store_with_forgery(b'{"n":2}', **fields))
    with pytest.raises(CheckpointError):
        checkpointer.load("t", "store_with_forgery")
    with pytest.raises(CheckpointError):
        dict(checkpointer.open("t", "store_with_forgery"))


def test_key_that_the_state_does_not_have():
    """A header that lists another key than the state has is damage. For the caller, the key exists, so it is no KeyError."""
    checkpointer = Checkpointer(store_with_forgery(b'{"n":2}', keys={"other": {"type": "int", "size": 1}}))
    with pytest.raises(IntegrityError):
        checkpointer.open("t", "store_with_forgery")["other"]


@pytest.mark.parametrize(
    "fields",
    [{"created": "2026-01-01T00:00:00"}, {"metadata": {"a": DEEP}}, {"version": 1, "task": ""}, {"version": 2, "task": ""}],
    ids=["time", "deep", "name in version 1", "name in version 2"],
)
def test_forged_header_does_not_hide_valid_checkpoints(tmp_path, fields):
    """A checkpoint whose time has no zone, whose header is nested too deep or whose task is empty is not listed; valid ones are."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "store_with_forgery.ckpt").write_bytes(store_with_forgery(b"{}", **fields).get("t", "store_with_forgery"))
    checkpointer = Checkpointer(tmp_path)
    good = checkpointer.save("t", {"n": 1})
    assert [info.id for info in checkpointer.list("t")] == [info.id for info in checkpointer.find(Query())] == [good.id]
    assert checkpointer.load("t", good.id) == {"n": 1}


def test_deep_header_with_a_broken_seal_is_damage():
    """A header that is nested too deep to read its version counts as damaged; there is no RecursionError."""
    with pytest.raises(IntegrityError):
        container.read_header(b'{"checkpoint":1,"x":' + DEEP.encode() + b"}\n")


def test_too_deep_metadata_is_refused():
    """How deep a reader can go depends on its call stack, so metadata beyond a fixed depth is refused when it is saved."""
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
def test_forged_tagged_values_raise_serialization_error(tagged):
    """A tagged value with invalid content raises SerializationError."""
    with pytest.raises(SerializationError):
        Checkpointer(store_with_forgery(b'{"~py":%b}' % tagged.encode())).load("t", "store_with_forgery")
