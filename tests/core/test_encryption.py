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
    """The state is loaded with the key, and is not readable in the stored bytes."""
    store = MemoryStore()
    checkpointer = Checkpointer(store, encryption=AeadCipher(KEY, kind=kind), compression=compression)
    info = checkpointer.save("t", STATE)
    assert checkpointer.load("t") == STATE
    assert b"swordfish" not in store.get("t", info.id)
    assert info.keys["secret"].digest == ""


def test_wrong_key_no_key_other_cipher():
    """A wrong key, a missing key and another cipher raise different errors."""
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


def test_swapped_payload_is_refused():
    """A payload moved to another checkpoint is refused, although every digest matches."""
    store = MemoryStore()
    checkpointer = Checkpointer(store, encryption=AeadCipher(KEY))
    a, b = checkpointer.save("t", {"who": "ann"}, id="a"), checkpointer.save("t", {"who": "bob"}, id="b")
    forged = bytes(store.get("t", "a")).replace(b'"id":"a"', b'"id":"b"')
    store._checkpoints["t"]["b"] = b, forged
    with pytest.raises(IntegrityError):
        checkpointer.load("t", "b")
    assert a.digest != b.digest


def test_unencrypted_checkpoints_stay_readable():
    """Checkpoints from before encryption was enabled can still be loaded."""
    store = MemoryStore()
    Checkpointer(store).save("t", {"n": 1}, id="old")
    checkpointer = Checkpointer(store, encryption=AeadCipher(KEY))
    checkpointer.save("t", {"n": 2}, id="new")
    assert [checkpointer.load("t", id)["n"] for id in ("old", "new")] == [1, 2]


def test_keys_can_be_rotated():
    """The key id in the header selects the key, so old checkpoints can be loaded after a rotation."""
    keys = {"2025": KEY, "2026": OTHER}
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher(keys.__getitem__, key_id="2025")).save("t", {"n": 1}, id="old")
    now = Checkpointer(store, encryption=AeadCipher(keys.__getitem__, key_id="2026"))
    now.save("t", {"n": 2}, id="new")
    assert [now.load("t", id)["n"] for id in ("old", "new")] == [1, 2]


@pytest.mark.parametrize("text", [KEY.hex(), "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="])
def test_key_from_environment(monkeypatch, text):
    """The key may be in the environment, as hex or base64."""
    monkeypatch.setenv(KEY_VARIABLE, text)
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher()).save("t", STATE)
    assert Checkpointer(store, encryption=AeadCipher(KEY)).load("t") == STATE


@pytest.mark.parametrize("text", ["", "short", "zz" * 32])
def test_invalid_keys_are_reported_at_once(monkeypatch, text):
    """An invalid key raises ConfigError before anything is saved, and is not part of the message."""
    monkeypatch.setenv(KEY_VARIABLE, text)
    with pytest.raises(ConfigError) as caught:
        AeadCipher()
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"key_id": 5}, {"key_id": None}, {"kind": "rot13"}, {"key": "k" * 32}, {"key": lambda _id: "k" * 32}],
    ids=["number", "none", "kind", "text", "function"],
)
def test_invalid_ciphers_are_reported_at_once(wrong):
    """They must not surface later as a checkpoint whose header cannot be read."""
    with pytest.raises(ConfigError):
        AeadCipher(**{"key": KEY, **wrong})


@pytest.mark.parametrize("key_function", [{"new": KEY}.get, {"new": KEY}.__getitem__], ids=["none", "raises"])
def test_unavailable_key_raises_access_error(key_function):
    """A checkpoint whose key was discarded raises AccessError, and does not prevent verifying the others."""
    store = MemoryStore()
    Checkpointer(store, encryption=AeadCipher(OTHER, key_id="old")).save("t", STATE)
    checkpointer = Checkpointer(store, encryption=AeadCipher(key_function, key_id="new"))
    with pytest.raises(AccessError, match="'old'"):
        checkpointer.load("t")
    checkpointer.save("t", STATE)
    assert sorted(finding.code for finding in checkpointer.verify("t")) == ["", "encryption.no_key"]


@pytest.mark.parametrize("error", [KeyError("new"), TimeoutError("the vault is down")], ids=["discarded", "down"])
def test_errors_of_the_key_function_are_translated(error):
    """If the function that returns keys fails, creating the cipher, saving and loading raise AccessError."""
    keys = [KEY, KEY]

    def find_key(key_id):
        if not keys:
            raise error
        return keys.pop()

    checkpointer = Checkpointer("memory://", encryption=AeadCipher(find_key, key_id="new"))
    checkpointer.save("t", STATE)
    for call in (lambda: AeadCipher(find_key, key_id="new"), lambda: checkpointer.save("t", STATE), lambda: checkpointer.load("t")):
        with pytest.raises(AccessError, match="'new'") as caught:
            call()
        assert (caught.value.code, caught.value.__cause__) == ("encryption.no_key", error)


def test_incremental_and_encrypted_exclude_each_other():
    """Incremental saves need digests in the header, encryption forbids them, so the combination is refused."""
    with pytest.raises(ConfigError, match="exclude each other"):
        Checkpointer("memory://", encryption=AeadCipher(KEY), incremental=3)


def test_payload_shorter_than_a_nonce_raises_access_error():
    """It raises the same error as a wrong key."""
    with pytest.raises(AccessError):
        AeadCipher(bytes(32)).decrypt(b"abc", b"", "")


def test_runs_write_no_content_into_the_header_of_an_encrypted_checkpoint():
    """Errors and renderings may quote the state, so the readable header omits them."""

    def step(_state, session):
        session.notes.rendering("prompt", "Dear {name}", "Dear patient Ann")
        raise ValueError("sk-SECRET is wrong")

    checkpointer = Checkpointer("memory://", encryption=AeadCipher(KEY))
    with pytest.raises(ValueError):
        run_agent("agent", step, {"n": 1}, checkpointer)
    [info] = checkpointer.list("agent")
    assert info.metadata["error"] == {"class": "unknown", "type": "ValueError"}
    stored = bytes(checkpointer.store.get("agent", info.id))
    assert b"SECRET" not in stored
    assert b"Ann" not in stored
