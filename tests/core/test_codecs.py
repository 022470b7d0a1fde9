"""Codecs: they round-trip, and never produce more bytes than declared."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from ckpt_observe.core import codecs as codecs_module
from ckpt_observe.core.codecs import compress_document
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.core.plugins import codecs
from ckpt_observe.errors import CompressionError

NAMES = ["gzip", "zstd", pytest.param("lz4", marks=pytest.mark.skipif(find_spec("lz4") is None, reason="lz4 is not installed"))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"", b"x", b"state " * 1000, bytes(range(256)) * 300], ids=["empty", "one", "text", "binary"])
def test_round_trip(name, data):
    """Compressed data is decompressed to the same bytes."""
    codec = codecs.factory(name)()
    assert codec.decompress(codec.compress(data), len(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_bomb_stops_at_the_declared_size(name):
    """Decompression never produces more than the declared size."""
    codec = codecs.factory(name)()
    bomb = codec.compress(bytes(50_000_000))
    with pytest.raises(CompressionError) as caught:
        codec.decompress(bomb, 1000)
    assert caught.value.code == "compression.bomb"


@pytest.mark.parametrize("name", NAMES)
def test_damage_raises_compression_error(name):
    """Truncated or altered data raises CompressionError."""
    codec = codecs.factory(name)()
    data = codec.compress(b"some state " * 50)
    for damaged in (data[:-1], data[: len(data) // 2], b"", b"nonsense", data + b"x"):
        with pytest.raises(CompressionError):
            codec.decompress(damaged, 550)


@pytest.mark.parametrize("name", NAMES)
def test_large_documents_are_compressed_in_parts(name, monkeypatch):
    """A large document is compressed in parts, independent of its pieces. It round-trips, and a missing part is detected."""
    monkeypatch.setattr(codecs_module, "_PART", 1000)
    codec = codecs.factory(name)()
    pieces = [bytes([n]) * (37 * n) for n in range(20)]
    document = compress_document(codec, Blob(pieces))
    assert len(document.pieces) == 8
    data, size = bytes(document), sum(map(len, pieces))
    assert codec.decompress(data, size) == b"".join(pieces)
    empty = codec.compress(b"")
    for wrong in (
        empty * 3 + data,
        data + empty * 2,
        b"".join(document.pieces[:-1]),
        b"".join(document.pieces[1:]),
        data + document.pieces[0],
        data + b"x",
        data[:-1],
    ):
        with pytest.raises(CompressionError):
            codec.decompress(wrong, size)


MEMORY = """
import resource, sys
import numpy as np
from ckpt_observe.core import Checkpointer
checkpointer = Checkpointer(sys.argv[1], format="arrays", compression=sys.argv[2])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
checkpointer.save("t", {"a": np.full(2**20, 1.5)})
state = {"a": np.full(2**23, 1.5)}
before = peak()
checkpointer.save("t", state)
saved = peak()
del state
assert checkpointer.load("t")["a"][-1] == 1.5
print(saved - before, peak() - saved)
"""


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_a_compressed_save_is_bounded(name, tmp_path):
    """Saving 64 MiB of arrays compressed needs no second copy of them, and loading them only the one that is returned."""
    pytest.importorskip("numpy")
    run = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path), name], capture_output=True, text=True, check=True)
    saving, loading = map(int, run.stdout.split())
    assert saving < 32
    assert loading < 32  # it reuses the memory of the saved state, which was deleted
