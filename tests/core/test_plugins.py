"""Plug-ins by name, pickle, missing extras, invalid settings."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe.core import Checkpointer, Query, stores
from ckpt_observe.core.plugins import codecs
from ckpt_observe.core.runner import Done, Graph, RunSettings, run_agent
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.core.workspace import Workspace
from ckpt_observe.errors import AccessError, CompatibilityError, ConfigError, MissingExtraError, SerializationError


def test_registered_store_is_opened_by_url():
    """A registered scheme opens its store."""
    stores.register("mine", lambda url: MemoryStore(url.replace("mine", "memory")))
    checkpointer = Checkpointer("mine://place")
    checkpointer.save("t", {"n": 1})
    assert isinstance(checkpointer.store, MemoryStore)
    assert Checkpointer("mine://place").load("t") == {"n": 1}


def test_scheme_alone_opens_its_store(tmp_path, monkeypatch):
    """A registered name without a URL opens its store if it needs no path; a directory of that name is given by its path."""
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
def test_unknown_names_list_the_known_ones(wrong):
    """The error for an unknown name lists the known names."""
    with pytest.raises(ConfigError, match="use one of: "):
        Checkpointer(**wrong)


@pytest.mark.parametrize(
    ("url", "package"),
    [("redis://:se/cret@h/0", "redis"), ("redis://h:port/0", "redis"), ("postgresql://u:se/cret@h/db", "psycopg"), ("git://", "shutil")],
)
def test_invalid_url_is_reported_without_its_password(url, package):
    """An invalid URL raises ConfigError, and the message contains no part of a password."""
    pytest.importorskip(package)
    with pytest.raises(ConfigError) as caught:
        Checkpointer(url)
    assert "'se'" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_missing_codec_is_a_compatibility_error():
    """A checkpoint made with a plug-in that is not installed says so."""

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


def test_pickle_needs_the_pickle_format():
    """Only a Checkpointer with format="pickle" loads a pickle; there is no fallback."""
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
    """If a plug-in's package is not installed, the error names the extra; everything else works without extras."""
    run = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["lz4", "arrays", "postgres", "redis", "objects", "crypto"]


def test_every_extra_that_an_error_names_exists():
    """What the message says can be installed. torch has no extra, because only a program with torch saves tensors."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(ckpt_observe.__file__).parent.rglob("*.py"))
    named = set(re.findall(r'MissingExtraError\("[^"]+", "(\w+)"\)', sources))
    assert {"lz4", "arrays", "postgres", "redis", "objects", "crypto", "ui"} <= named
    assert named <= set(metadata("ckpt-observe").get_all("Provides-Extra"))
    text = "a checkpoint with torch tensors needs a package that is not installed; run: pip install torch"
    assert str(MissingExtraError("a checkpoint with torch tensors", package="torch")) == text


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
def test_invalid_settings_are_reported_at_once(make, tmp_path, monkeypatch):
    """A setting that would fail at the first save, or create a directory with an odd name, raises ConfigError at once."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        make()
    assert list(tmp_path.iterdir()) == []


def test_step_of_another_integer_type():
    """A step may have any integer type, such as one of numpy."""

    class Whole:
        def __index__(self):
            return 7

    assert Checkpointer("memory://").save("t", {}, step=Whole()).step == 7


def test_error_names_the_value_that_cannot_be_saved():
    """The error contains the path of the value in the state and what to do."""
    with pytest.raises(SerializationError, match=r"state\['a'\]\['b'\]\[1\] cannot be saved as json.*convert it"):
        Checkpointer("memory://").save("t", {"ok": (1, 2), "a": {"b": [1, object()]}})


def test_error_of_a_save_contains_no_content():
    """Errors go to logs and traces, so a key that may be content, such as a person's name, is hidden."""
    for value in (object(), {1: [lambda: 0]}):
        with pytest.raises(SerializationError) as caught:
            Checkpointer("memory://").save("t", {"people": {"Ann Smith": value}})
        assert "state['people'][…]" in str(caught.value)
        assert "Ann" not in str(caught.value)


def test_state_that_changes_during_the_save_is_refused():
    """The search for the value that cannot be saved may itself fail; the state is refused nevertheless."""

    class Shifting(dict):
        def items(self):
            raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(SerializationError):
        Checkpointer("memory://").save("t", {"a": Shifting(x=object())})
