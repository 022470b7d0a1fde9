"""Too little memory is a typed error, never a crash; a forged checkpoint is refused before it takes much memory."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.codecs import ZstdCodec
from ckpt_observe.core.format import container, digests
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.errors import CapacityError, CompressionError

PROGRAM = """
import os, resource, sys
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CapacityError
root, format, compression, step = sys.argv[1:]
checkpointer = Checkpointer(root, format=format, compression=compression)
checkpointer.save("warm", {"a": [1, "x"]})
checkpointer.load("warm")
state = {"text": "0123456789abcdef" * (1 << 20)} if step != "load" else None
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for room in (2 << 20, 10 << 20, 18 << 20, 26 << 20, 34 << 20, 50 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
    try:
        checkpointer.save("big", state) if step == "save" else checkpointer.load("big")
    except CapacityError as error:
        print("capacity", error.code, error.impact)
    else:
        print("ok")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.parametrize(
    ("format", "compression"), [("json", "none"), ("msgpack", "none"), ("pickle", "none"), ("json", "gzip"), ("msgpack", "zstd")]
)
@pytest.mark.parametrize("step", ["save", "load"])
def test_out_of_memory(tmp_path, format, compression, step):
    """Under a limit of the address space, saving and loading 16 MiB raise CapacityError, whichever step runs out of memory."""
    if step == "load":
        Checkpointer(tmp_path, format=format, compression=compression).save("big", {"text": "0123456789abcdef" * (1 << 20)})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), format, compression, step]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = result.stdout.split("\n")[:-1]
    assert (result.returncode, len(lines)) == (0, 6), result.stderr
    assert lines[0].startswith("capacity ")
    assert {line.partition(";")[0] for line in lines} <= {
        "ok",
        "capacity memory.exhausted this checkpoint was not saved",
        "capacity memory.exhausted nothing was loaded",
    }


def forge(size, declared):
    """Return a checkpoint whose zstd payload of `size` zeros is not padded, with a correct digest and seal."""
    zstd = ZstdCodec()._zstd
    payload = Blob([zstd.compress(bytes(size))])
    info = msgspec.structs.replace(
        Checkpointer("memory://", compression="zstd").save("t", {"a": 1}),
        serialized_size=declared,
        payload_size=len(payload),
        digest=digests.compute(payload),
        header_size=0,
    )
    return info, container.pack(info, payload)


@pytest.mark.parametrize("declared", [300 << 20, 1 << 42])
def test_forged_size(declared, monkeypatch):
    """A small file that declares a huge size is refused before anything is decompressed."""
    info, blob = forge(1 << 20, declared)
    checkpointer = Checkpointer("memory://", compression="zstd")
    checkpointer.store.put(info, blob)
    monkeypatch.setattr("ckpt_observe.core.codecs.bytearray", lambda *_: pytest.fail("memory was taken"), raising=False)
    with pytest.raises(CompressionError) as caught:
        checkpointer.load("t", info.id)
    assert caught.value.code == "compression.bomb"


def test_compressible_state():
    """A large state that compresses better than any forged one may, such as zeros, is padded when it is saved, and can be loaded."""
    data = bytes(300 << 20)
    codec = ZstdCodec()
    part = codec.compress(data[: 4 << 20])
    assert (4 << 20) / len(part) == pytest.approx(1000, rel=0.01)
    assert codec.decompress(part * 75, len(data)) == data


def test_typed_error_of_serializer(monkeypatch):
    """A MemoryError of a serializer is a CapacityError."""
    checkpointer = Checkpointer("memory://", format="msgpack")

    def fail(_):
        raise MemoryError

    monkeypatch.setattr(checkpointer.serializer, "encode", fail)
    with pytest.raises(CapacityError) as caught:
        checkpointer.save("t", {"a": 1})
    assert caught.value.code == "memory.exhausted"
