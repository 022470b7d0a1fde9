"""Encrypted checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.ciphers import KEY_VARIABLE, AeadCipher
from ckpt_observe.core.runner import run_agent
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import AccessError, CompatibilityError, ConfigError, IntegrityError

KEY, OTHER = b"k" * 32, b"o" * 32
STATE = {"secret": "the password is swordfish"}


@pytest.mark.parametrize("kind", ["aes-256-gcm", "chacha20-poly1305"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_round_trip_and_nothing_readable(kind, compression):
    """K10, D7: the state comes back with the key, and is not in the stored bytes."""
    store = MemoryStore()
    checkpointer = Checkpointer(store, encryption=AeadCipher(KEY, kind=kind), compression=compression)
    info = checkpointer.save("t", STATE)
    assert checkpointer.load("t") == STATE
    assert b"swordfish" not in store.get("t", info.id)
    assert info.keys["secret"].digest == ""


def test_wrong_key_no_key_other_cipher():
    """A wrong key, a missing one and another cipher are told apart."""
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher(KEY)).save("t", STATE)
    for wrong, kind, code in (
        (AeadCipher(OTHER), AccessError, "encryption.wrong_key"),
        (None, AccessError, "encryption.no_key"),
        (AeadCipher(KEY, kind="chacha20-poly1305"), CompatibilityError, "compatibility.unknown_format"),
    ):
        with pytest.raises(kind) as caught:
            Checkpointer(store, encryption=wrong).load("t")
        assert caught.value.code == code


def test_swapped_payload_does_not_open():
    """A payload moved to another checkpoint's place is refused, though every digest fits."""
    store = MemoryStore()
    checkpointer = Checkpointer(store, encryption=AeadCipher(KEY))
    a, b = checkpointer.save("t", {"who": "ann"}, id="a"), checkpointer.save("t", {"who": "bob"}, id="b")
    forged = bytes(store.get("t", "a")).replace(b'"id":"a"', b'"id":"b"')
    store._checkpoints["t"]["b"] = b, forged
    with pytest.raises(IntegrityError):
        checkpointer.load("t", "b")
    assert a.digest != b.digest


def test_plain_neighbours_stay_readable():
    """D7: checkpoints from before encryption was switched on still load."""
    store = MemoryStore()
    Checkpointer(store).save("t", {"n": 1}, id="old")
    checkpointer = Checkpointer(store, encryption=AeadCipher(KEY))
    checkpointer.save("t", {"n": 2}, id="new")
    assert [checkpointer.load("t", id)["n"] for id in ("old", "new")] == [1, 2]


def test_keys_can_be_changed():
    """The key id in the header chooses the key: old checkpoints open after a change."""
    keys = {"2025": KEY, "2026": OTHER}
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher(keys.__getitem__, key_id="2025")).save("t", {"n": 1}, id="old")
    now = Checkpointer(store, encryption=AeadCipher(keys.__getitem__, key_id="2026"))
    now.save("t", {"n": 2}, id="new")
    assert [now.load("t", id)["n"] for id in ("old", "new")] == [1, 2]


@pytest.mark.parametrize("text", [KEY.hex(), "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="])
def test_key_from_environment(monkeypatch, text):
    """The key may come from the environment, as hex or base64."""
    monkeypatch.setenv(KEY_VARIABLE, text)
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher()).save("t", STATE)
    assert Checkpointer(store, encryption=AeadCipher(KEY)).load("t") == STATE


@pytest.mark.parametrize("text", ["", "short", "zz" * 32])
def test_impossible_keys_are_told_at_once(monkeypatch, text):
    """A key that cannot be is a configuration error before anything is saved, and is not repeated in the message."""
    monkeypatch.setenv(KEY_VARIABLE, text)
    with pytest.raises(ConfigError) as caught:
        AeadCipher()
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"key_id": 5}, {"key_id": None}, {"kind": "rot13"}, {"key": "k" * 32}, {"key": lambda _id: "k" * 32}],
    ids=["number", "none", "kind", "text", "asked"],
)
def test_impossible_ciphers_are_told_at_once(wrong):
    """And not by a checkpoint whose header is never read again."""
    with pytest.raises(ConfigError):
        AeadCipher(**{"key": KEY, **wrong})


@pytest.mark.parametrize("asked", [{"new": KEY}.get, {"new": KEY}.__getitem__], ids=["none", "raises"])
def test_a_key_that_is_not_to_be_had(asked):
    """D7: a checkpoint of a key that was thrown away is an access error, and does not keep the others from being verified."""
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher(OTHER, key_id="old")).save("t", STATE)
    checkpointer = Checkpointer(store, encryption=AeadCipher(asked, key_id="new"))
    with pytest.raises(AccessError, match="'old'"):
        checkpointer.load("t")
    checkpointer.save("t", STATE)
    assert sorted(finding.code for finding in checkpointer.verify("t")) == ["", "encryption.no_key"]


@pytest.mark.parametrize("error", [KeyError("new"), TimeoutError("the vault is away")], ids=["thrown away", "away"])
def test_whatever_a_function_for_keys_raises_is_typed(error):
    """D7: a key that cannot be asked for is an access error, at the start, at a save and at a load."""
    keys = [KEY, KEY]

    def asked(key_id):
        if not keys:
            raise error
        return keys.pop()

    checkpointer = Checkpointer("memory://", encryption=AeadCipher(asked, key_id="new"))
    checkpointer.save("t", STATE)
    for call in (lambda: AeadCipher(asked, key_id="new"), lambda: checkpointer.save("t", STATE), lambda: checkpointer.load("t")):
        with pytest.raises(AccessError, match="'new'") as caught:
            call()
        assert (caught.value.code, caught.value.__cause__) == ("encryption.no_key", error)


def test_incremental_and_encrypted_exclude_each_other():
    """They need opposite things of the header, so the pair is refused."""
    with pytest.raises(ConfigError, match="exclude each other"):
        Checkpointer("memory://", encryption=AeadCipher(KEY), incremental=3)


def test_payload_shorter_than_a_nonce_is_typed():
    """What is too short to be encrypted at all does not open, like what the key does not fit."""
    with pytest.raises(AccessError):
        AeadCipher(bytes(32)).decrypt(b"abc", b"", "")


def test_runs_write_no_content_beside_an_encrypted_state():
    """D7, D3: what an error or a rendering quotes of the state does not stand in the readable header of an encrypted checkpoint."""

    def step(_state, session):
        session.notes.rendering("prompt", "Dear {name}", "Dear patient Ann")
        raise ValueError("sk-SECRET is wrong")

    checkpointer = Checkpointer("memory://", encryption=AeadCipher(KEY))
    with pytest.raises(ValueError):
        run_agent("agent", step, {"n": 1}, checkpointer)
    [info] = checkpointer.list("agent")
    assert info.metadata["error"] == {"class": "unknown", "type": "ValueError"}
    kept = bytes(checkpointer.store.get("agent", info.id))
    assert b"SECRET" not in kept
    assert b"Ann" not in kept
