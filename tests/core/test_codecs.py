"""Codecs: round trip, and never more bytes than declared."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ckpt_observe.core.codecs import codecs
from ckpt_observe.errors import CompressionError

NAMES = ["gzip", "zstd", pytest.param("lz4", marks=pytest.mark.skipif(find_spec("lz4") is None, reason="lz4 is not installed"))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"", b"x", b"state " * 1000, bytes(range(256)) * 300], ids=["empty", "one", "text", "binary"])
def test_round_trip(name, data):
    """What was compressed comes back."""
    codec = codecs.factory(name)()
    assert codec.decompress(codec.compress(data), len(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_bomb_stops_at_the_declared_size(name):
    """Decompression never makes more than the declared size, whatever the data would become."""
    codec = codecs.factory(name)()
    bomb = codec.compress(bytes(50_000_000))
    with pytest.raises(CompressionError) as caught:
        codec.decompress(bomb, 1000)
    assert caught.value.code == "compression.bomb"


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_typed(name):
    """Cut or altered data is a compression error."""
    codec = codecs.factory(name)()
    data = codec.compress(b"some state " * 50)
    for damaged in (data[:-1], data[: len(data) // 2], b"", b"nonsense", data + b"x"):
        with pytest.raises(CompressionError):
            codec.decompress(damaged, 550)
