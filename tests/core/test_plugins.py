"""Plug-ins by name, pickle, missing extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer, Query, stores
from ckpt_observe.core.plugins import codecs
from ckpt_observe.core.runner import Done, Graph, RunSettings, run_agent
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.core.workspace import Workspace
from ckpt_observe.errors import AccessError, CompatibilityError, ConfigError, SerializationError


def test_own_store_by_name():
    """G6: a store registered under a name is found by its URL."""
    stores.register("mine", lambda url: MemoryStore(url.replace("mine", "memory")))
    checkpointer = Checkpointer("mine://place")
    checkpointer.save("t", {"n": 1})
    assert isinstance(checkpointer.store, MemoryStore)
    assert Checkpointer("mine://place").load("t") == {"n": 1}


def test_a_name_alone_is_its_store(tmp_path, monkeypatch):
    """G6: a registered name chooses its store; a directory of that name is meant by its path, and what needs a place says so."""
    monkeypatch.chdir(tmp_path)
    assert Checkpointer("memory").store.kind == "memory"
    assert [Checkpointer(path).store.kind for path in (Path("memory"), "./memory", "memory2")] == ["file"] * 3
    for name in ("file", "jsonl", "sqlite", "git"):
        with pytest.raises(ConfigError, match="///path"):
            Checkpointer(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"store": "nosuch://x"}, {"store": "memory://", "format": "xml"}, {"store": "memory://", "compression": "rar"}]
)
def test_unknown_names_list_the_known(wrong):
    """A name that is not known says which are."""
    with pytest.raises(ConfigError, match="known are"):
        Checkpointer(**wrong)


@pytest.mark.parametrize(
    ("url", "package"),
    [("redis://:se/cret@h/0", "redis"), ("redis://h:port/0", "redis"), ("postgresql://u:se/cret@h/db", "psycopg"), ("git://", "shutil")],
)
def test_unreadable_address_is_told_without_its_password(url, package):
    """A URL that does not read is a wrong setting, and no part of a password is in the message."""
    pytest.importorskip(package)
    with pytest.raises(ConfigError) as caught:
        Checkpointer(url)
    assert "'se'" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_codec_that_is_gone_is_a_compatibility_error():
    """D7: a checkpoint made with a plug-in that is not here says so."""

    class Reverse:
        name = "reverse"

        def compress(self, data):
            return bytes(data)[::-1]

        def decompress(self, data, size):
            return bytes(data)[::-1]

    codecs.register("reverse", Reverse)
    store = MemoryStore()
    Checkpointer(store, compression="reverse").save("t", {"n": 1})
    assert Checkpointer(store).load("t") == {"n": 1}
    del codecs._factories["reverse"]
    with pytest.raises(CompatibilityError, match="'reverse', which is not available"):
        Checkpointer(store).load("t")


def test_pickle_only_when_asked():
    """A pickle is loaded only by a Checkpointer that was made for pickles: never by fallback."""
    store = MemoryStore()
    trusting = Checkpointer(store, format="pickle")
    trusting.save("t", {"odd": slice(1, 2)})
    assert trusting.load("t") == {"odd": slice(1, 2)}
    with pytest.raises(AccessError, match="if you trust it"):
        Checkpointer(store).load("t")


MISSING = """
import sys
for name in ("cryptography", "lz4", "numpy", "obstore", "psycopg", "redis"):
    sys.modules[name] = None
from ckpt_observe.core.ciphers import AeadCipher
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import MissingExtraError
for use in (
    lambda: Checkpointer("memory://", compression="lz4"),
    lambda: Checkpointer("memory://", format="arrays"),
    lambda: Checkpointer("postgresql://x/y"),
    lambda: Checkpointer("redis://x/0"),
    lambda: Checkpointer("s3://bucket/prefix"),
    lambda: AeadCipher(bytes(32)),
):
    try:
        use()
    except MissingExtraError as error:
        print(str(error).split("[")[1].split("]")[0])
"""


def test_missing_package_names_its_extra():
    """A plug-in whose package is not installed says what to install; everything else works without any extra."""
    run = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["lz4", "arrays", "postgres", "redis", "objects", "crypto"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Checkpointer("memory://", retention=5),
        lambda: Checkpointer("memory://", hooks=[1]),
        lambda: Checkpointer("memory://", encryption="aes"),
        lambda: Checkpointer("memory://", incremental="8"),
        lambda: Checkpointer("sqlite:rel.db"),
        lambda: Checkpointer("memory:"),
        lambda: Checkpointer("~/checkpoints"),
        lambda: Workspace("git:///somewhere", "task"),
        lambda: RunSettings(trigger=5),
        lambda: run_agent("agent", lambda state, _: Done(state), 1, "memory://"),
        lambda: Graph(nodes={"end": print}, edges={}, entry="end", exits="end"),
        lambda: Query(parameters=[1]),
    ],
)
def test_wrong_settings_are_told_where_they_are_given(make, tmp_path, monkeypatch):
    """A setting that would fail at the first save, or make a directory of an odd name, is a configuration error at once."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        make()
    assert list(tmp_path.iterdir()) == []


def test_step_of_another_whole_number_type():
    """A step may be any whole number, such as one of numpy."""

    class Whole:
        def __index__(self):
            return 7

    assert Checkpointer("memory://").save("t", {}, step=Whole()).step == 7


def test_what_cannot_be_saved_is_named():
    """L10: the error says where in the state the value is, and what to do."""
    with pytest.raises(SerializationError, match=r"state\['a'\]\['b'\]\[1\] cannot be saved as json.*convert it"):
        Checkpointer("memory://").save("t", {"ok": (1, 2), "a": {"b": [1, object()]}})


def test_error_of_a_save_names_no_content():
    """D7: a key that is no plain name, such as a person, is not told: errors go to logs and traces."""
    for value in (object(), {1: [lambda: 0]}):
        with pytest.raises(SerializationError) as caught:
            Checkpointer("memory://").save("t", {"people": {"Ann Smith": value}})
        assert "state['people'][…]" in str(caught.value)
        assert "Ann" not in str(caught.value)


def test_state_that_cannot_be_looked_through_is_refused():
    """A state that changes while the error looks for what is wrong with it is refused as any other."""

    class Shifting(dict):
        def items(self):
            raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(SerializationError):
        Checkpointer("memory://").save("t", {"a": Shifting(x=object())})
