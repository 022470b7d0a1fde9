"""Hostile files: nothing is executed, errors are typed, memory and time are bounded."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from ckpt_observe import readers
from ckpt_observe.errors import (
    CapacityError,
    CheckpointError,
    CompatibilityError,
    CompressionError,
    ConfigError,
    DeadlineError,
    IntegrityError,
)
from ckpt_observe.readers import Limits

GOLDEN = Path(__file__).parent / "golden"
SEED = 20261118
"""The same in each run, so that a failure is not random. It is in the message of a failure."""
FILES = sorted(path.name for path in GOLDEN.iterdir() if path.is_file() and path.suffix not in (".py", ".json"))


class Attack:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def write_zip(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def attacks(directory, data):
    """Write the pickle in every format that contains one."""
    (directory / "a.pkl").write_bytes(data)
    yield directory / "a.pkl"
    (directory / "a.joblib").write_bytes(zlib.compress(data))
    yield directory / "a.joblib"
    yield write_zip(directory / "a.pt", {"a/data.pkl": data, "a/version": "3"})
    legacy = (GOLDEN / "legacy.pt").read_bytes()
    start = legacy.index(b".", legacy.index(b"little_endian")) + 1  # after the magic number, the protocol and the system
    (directory / "legacy.pt").write_bytes(legacy[:start] + data + pickle.dumps([], 2))
    yield directory / "legacy.pt"


def test_pickles_are_not_executed(tmp_path):
    """A pickle that runs a command is shown with a warning in each format, and the command does not run. The control runs it."""
    marker = tmp_path / "executed"
    data = pickle.dumps({"weights": Attack(marker), "epoch": 3}, 2)
    for path in attacks(tmp_path, data):
        contents = readers.read(path, depth=3)
        assert "posix.system" in contents.imports
        assert "posix.system" in contents.warnings[0]
        assert {entry.name for entry in contents.entries} == {"weights", "epoch"}
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp/.metadata").write_bytes(data)
    (tmp_path / "dcp/__0_0.distcp").write_bytes(b"")
    with pytest.raises(IntegrityError):
        readers.read(tmp_path / "dcp")
    assert not marker.exists()
    pickle.loads(data)
    assert marker.exists()


def test_zip_bombs(tmp_path):
    """A member that is too large, or larger than declared, is refused before it is decompressed."""
    path = write_zip(tmp_path / "honest.pt", {"a/data.pkl": bytes(3_000_000)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CapacityError, match="structure_size"):
        readers.read(path, limits=Limits(structure_size=1_000_000))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    struct.pack_into("<L", data, entry + 24, 1000)
    (tmp_path / "lying.pt").write_bytes(data)
    with pytest.raises(CompressionError, match="larger than the 1000 bytes"):
        readers.read(tmp_path / "lying.pt")
    (tmp_path / "bomb.joblib").write_bytes(zlib.compress(b"\x80\x05\x8e" + struct.pack("<Q", 10_000_000) + bytes(10_000_000) + b"."))
    with pytest.raises(CapacityError, match="decompressed_size"):
        readers.read(tmp_path / "bomb.joblib", limits=Limits(decompressed_size=1_000_000))
    assert readers.read(tmp_path / "bomb.joblib").entries[0].size == 10_000_009


PICKLES = {
    "no STOP": b"\x80\x02N",
    "empty stack": b"\x80\x02.",
    "unknown opcode": b"\x80\x02\xff.",
    "missing memo": b"\x80\x02h\x05.",
    "pop across a mark": b"\x80\x02(N\x85(s.",
    "append to nothing": b"\x80\x02(Ne.",
    "append to None": b"\x80\x02N(Ne.",
    "length beyond the end": b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "endless line": b"\x80\x02V" + b"a" * 100_000,
    "number of a million digits": b"\x80\x02L" + b"9" * 10_000 + b"L\n.",
    "key without value": b"\x80\x02}(Nu.",
    "call without arguments": b"\x80\x02NR.",
}


@pytest.mark.parametrize("data", PICKLES.values(), ids=PICKLES)
def test_malformed_pickles(tmp_path, data):
    """Opcodes that no pickler writes are IntegrityErrors."""
    (tmp_path / "a.pkl").write_bytes(data)
    with pytest.raises(IntegrityError):
        readers.read(tmp_path / "a.pkl")


def test_deep_and_long_pickles(tmp_path):
    """Nesting that exceeds the call stack is cut at the depth. Millions of opcodes are refused at the limit, or when the time is over."""
    (tmp_path / "deep.pkl").write_bytes(b"\x80\x02" + b"]" * 5_000 + b"a" * 4_999 + b".")
    contents = readers.read(tmp_path / "deep.pkl", depth=10**9)
    assert contents.entries[0].type == "list"
    (tmp_path / "cycle.pkl").write_bytes(b"\x80\x02]q\x00h\x00a.")
    assert readers.read(tmp_path / "cycle.pkl", depth=50).entries[0].children == ()
    (tmp_path / "long.pkl").write_bytes(b"\x80\x02](" + b"N" * 70_000 + b"e.")
    assert readers.read(tmp_path / "long.pkl").size == 70_006
    with pytest.raises(CapacityError, match=r"readers\.read\(path, limits=Limits\(steps="):
        readers.read(tmp_path / "long.pkl", limits=Limits(steps=50_000))
    with pytest.raises(DeadlineError, match=r"readers\.read\(path, limits=Limits\(seconds="):
        readers.read(tmp_path / "long.pkl", limits=Limits(seconds=-1.0))


def test_pickles_that_multiply(tmp_path):
    """A large value that is used again and again as argument, state or key costs no more than its opcodes."""
    large = b"}q\x00(" + b"".join(b"M" + struct.pack("<H", number) + b"N" for number in range(5_000)) + b"u0"
    objects = b"](" + b"cos\nA\n)Rh\x00b" * 200 + b"e"
    calls = b"](" + b"cos\nA\nh\x01R" * 2_000 + b"e"
    arguments = b"(" + b"N" * 5_000 + b"tq\x010"
    (tmp_path / "state.pkl").write_bytes(b"\x80\x02" + large + objects + b".")
    entries = readers.read(tmp_path / "state.pkl", depth=4).entries
    assert {entry.type for entry in entries} == {"os.A"}
    assert sum(len(entry.children) for entry in entries) == 5_000  # the first object owns them
    (tmp_path / "calls.pkl").write_bytes(b"\x80\x02" + arguments + calls + b".")
    assert len(readers.read(tmp_path / "calls.pkl", depth=4).entries) == 2_000
    lists = b"](" + b"N" * 16 + b"eq\x00"
    for level in range(40):  # sixteen copies of the list before
        lists += b"](" + (b"cbuiltins\nlist\nh" + bytes([level]) + b"\x85R") * 16 + b"eq" + bytes([level + 1])
    (tmp_path / "lists.pkl").write_bytes(b"\x80\x02" + lists + b".")
    assert len(readers.read(tmp_path / "lists.pkl", depth=100).entries) == 16
    key = b"Nq\x000"
    for level in range(100):  # eight times the tuple before: eight to the power of a hundred, if references were followed
        key += b"0(" + (b"h" + bytes([level])) * 8 + b"tq" + bytes([level + 1])
    (tmp_path / "key.pkl").write_bytes(b"\x80\x02}" + key.replace(b"00(", b"0(", 1) + b"K\x01s.")
    assert readers.read(tmp_path / "key.pkl", depth=5).entries[0].name.startswith("(None, ")


def test_pickles_that_use_a_long_tuple_as_many_shapes(tmp_path):
    """Only as much of a shape is kept as an array can have, because a long one takes the square of its length."""
    number = b"\x8a\x10" + b"\xff" * 15 + b"\x7f"  # the product of 2,000 of them has 250,000 bits
    shape = b"(" + number * 2_000 + b"tq\x000"
    tensors = b"](" + b"ctorch._utils\n_rebuild_tensor_v2\n(NNh\x00tR" * 200 + b"e"
    (tmp_path / "shapes.pkl").write_bytes(b"\x80\x02" + shape + tensors + b".")
    entries = readers.read(tmp_path / "shapes.pkl").entries
    assert {(entry.type, len(entry.shape or ())) for entry in entries} == {("torch.Tensor", 64)}


def test_fields_behind_a_thousand_others(tmp_path):
    """A field is looked for among as many as an object has, because a dict that is used many times takes the square of its length."""
    metadata = {f"other {number}": 0 for number in range(1_000)} | {"state_dict_metadata": {}}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(IntegrityError, match="has no `state_dict_metadata`"):
        readers.read(tmp_path)


def test_a_storage_with_a_negative_size(tmp_path):
    """A storage of -5 elements is damage. It made the sum of the sizes negative."""
    data = (GOLDEN / "legacy.pt").read_bytes()
    count = data.index(b"X\x03\x00\x00\x00cpu")
    size = data.index(b"K", count)
    (tmp_path / "negative.pt").write_bytes(data[:size] + b"J\xfb\xff\xff\xff" + data[size + 2 :])
    with pytest.raises(IntegrityError, match="not the id of a storage"):
        readers.read(tmp_path / "negative.pt")


def test_a_call_that_is_its_own_argument(tmp_path):
    """The list of arguments of a tensor's subclass contains the function and itself."""
    function = b"ctorch._tensor\n_rebuild_from_type_v2\nq\x01"
    (tmp_path / "cycle.pkl").write_bytes(b"\x80\x02" + function + b"]q\x00(h\x01Nh\x00e0](h\x01h\x00Re.")
    assert [entry.type for entry in readers.read(tmp_path / "cycle.pkl").entries] == ["None"]


def test_pickles_inside_a_pickle_share_its_limits(tmp_path):
    """The object arrays of joblib are pickles of their own. Many small ones cannot exceed the limit of one."""
    dtype = b"X\x05\x00\x00\x00dtypecnumpy\ndtype\nX\x02\x00\x00\x00O8\x85R"
    array = (
        b"cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}(X\x05\x00\x00\x00shapeK\x01\x85" + dtype + b"ub\x80\x02" + b"N0" * 1_000 + b"N."
    )
    (tmp_path / "arrays.pkl").write_bytes(b"\x80\x02](" + array * 10 + b"e.")
    assert len(readers.read(tmp_path / "arrays.pkl").entries) == 10
    with pytest.raises(CapacityError, match="steps"):
        readers.read(tmp_path / "arrays.pkl", limits=Limits(steps=10_000))


@pytest.mark.parametrize("shape", ["(1e999,)", "(-5,)"])
def test_impossible_shapes(tmp_path, shape):
    """A file is damaged if the shape of its array is not one."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".encode()
    (tmp_path / "array.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(IntegrityError, match="damaged"):
        readers.read(tmp_path / "array.npy")


def keras_file(path, *changes):
    """Write the golden model with other bytes at some positions of its HDF5 file."""
    data = bytearray((GOLDEN / "model.keras").read_bytes())
    start = data.index(b"\x89HDF")
    for position, content in changes:
        data[start + position : start + position + len(content)] = content
    path.write_bytes(data)
    return path


def test_hostile_hdf5(tmp_path):
    """Groups that contain themselves end, other versions are a warning, and lengths beyond the file are damage."""
    golden = (GOLDEN / "model.keras").read_bytes()
    weights = golden[golden.index(b"\x89HDF") :]
    root, node, tree = 0x60, weights.index(b"SNOD"), weights.index(b"TREE")
    cycle = keras_file(tmp_path / "cycle.keras", (node + 16, struct.pack("<Q", root)))
    assert readers.read(cycle, depth=2).entries[0].items in (None, 2)
    newer = readers.read(keras_file(tmp_path / "newer.keras", (8, b"\x02")), depth=2)
    assert "superblock 2" in newer.warnings[0]
    for name, position, content in (
        ("tree", tree + 24 + 8, struct.pack("<Q", tree)),
        ("heap", weights.index(b"HEAP") + 24, struct.pack("<Q", 2**62)),
        ("header", root + 8, b"\xff\xff\xff\xff"),
        ("root", 64, struct.pack("<Q", 2**63)),
        ("entries", node + 6, b"\xff\xff"),
    ):
        with pytest.raises(IntegrityError):
            readers.read(keras_file(tmp_path / f"{name}.keras", (position, content)), depth=2)


SPARSE = """
import os, resource, struct, sys
from ckpt_observe import readers
from ckpt_observe.errors import CheckpointError
size, directory = 10 * 2**30, sys.argv[1]
header = struct.pack("<4s4H2LH", b"PK\\x05\\x06", 0, 0, 1, 1, 0xFFFFFFF0, 0, 0)
starts = {
    "zeros": (b"", b""),
    "safetensors": (struct.pack("<Q", size - 8) + b"{", b""),
    "large-header": (struct.pack("<Q", 99_999_999) + b"{", b""),
    "zip": (b"PK\\x03\\x04", header),
    "sqlite": (b"SQLite format 3\\x00" + bytes(84), b""),
    "npy": (b"\\x93NUMPY\\x02\\x00\\xff\\xff\\xff\\xff", b""),
    "pickle": (b"\\x80\\x05\\x8e" + struct.pack("<Q", size - 12), b"."),
    "frame": (b"\\x80\\x05](", b""),
}
readers.read(sys.argv[2])  # what is imported now does not count
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, (start, end) in starts.items():
    with open(os.path.join(directory, name), "wb") as file:
        file.write(start)
        file.truncate(size)
        file.seek(size - len(end))
        file.write(end)
    try:
        result = readers.read(file.name).size
    except CheckpointError as error:
        result = type(error).__name__
    os.unlink(file.name)
    print(name, result)
print("grew", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_sparse_files_of_10_gib(tmp_path):
    """Files of 10 GiB that claim absurd lengths take less than 400 MiB of memory; a real pickle of 10 GiB is shown."""
    command = [sys.executable, "-c", SPARSE, str(tmp_path), str(GOLDEN / "torch.pt")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *answers, growth = [line.split() for line in result.stdout.splitlines()]
    assert dict(answers) == {
        "zeros": "CompatibilityError",
        "safetensors": "CompatibilityError",
        "large-header": "IntegrityError",
        "zip": "CapacityError",
        "sqlite": "CompatibilityError",
        "npy": "IntegrityError",
        "pickle": str(10 * 2**30),
        "frame": "IntegrityError",
    }
    assert int(growth[1]) < 400


SPARSE_PARTS = """
import os, resource, shutil, struct, sys
from pathlib import Path
from ckpt_observe import readers
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CheckpointError
size, directory, golden = 10 * 2**30, Path(sys.argv[1]), Path(sys.argv[2])

def extend(path, start=None):
    with open(path, "r+b" if start is None else "wb") as file:
        file.write(start or b"")
        file.truncate(size)

for name in ("dcp", "orbax"):
    for part in ("structure", "data"):
        shutil.copytree(golden / name, directory / f"{name}-{part}")
extend(directory / "dcp-structure/.metadata", b"\\x80\\x05\\x8e" + struct.pack("<Q", size))
extend(directory / "dcp-data/__0_0.distcp")
extend(directory / "orbax-structure/_METADATA", b"{")
extend(directory / "orbax-data/manifest.ocdbt")
for scheme in ("file", "jsonl", "sqlite"):
    path = directory / scheme
    with Checkpointer(f"{scheme}://{path}", format="json") as checkpointer:
        checkpointer.save("run", {"n": 1})
    extend(path if scheme == "sqlite" else next((path / "run").iterdir()))
shutil.copy(golden / "langgraph.db", directory / "langgraph")
extend(directory / "langgraph")
for name in ("sqlite", "langgraph"):  # the header says how many pages there are
    with open(directory / name, "r+b") as file:
        file.seek(28)
        file.write(struct.pack(">L", size // 4096))
readers.read(golden / "torch.pt")  # what is imported now does not count
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(directory.iterdir()):
    try:
        result = readers.read(path).format
    except CheckpointError as error:
        result = type(error).__name__
    print(path.name, result)
print("grew", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_sparse_files_in_directories_and_databases(tmp_path):
    """The same for files in the directories of checkpoints, and for databases that claim to have 10 GiB of pages."""
    command = [sys.executable, "-c", SPARSE_PARTS, str(tmp_path), str(GOLDEN)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *answers, growth = [line.split() for line in result.stdout.splitlines()]
    assert dict(answers) == {
        "dcp-data": "dcp",
        "dcp-structure": "IntegrityError",
        "file": "file",
        "jsonl": "jsonl",
        "langgraph": "langgraph-sqlite",
        "orbax-data": "orbax",
        "orbax-structure": "CapacityError",
        "sqlite": "sqlite",
    }
    assert int(growth[1]) < 400


def mutate(data, generator):
    """Change, remove or repeat a few bytes."""
    data = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        position = generator.randrange(len(data) or 1)
        kind = generator.randrange(4)
        if kind == 0:
            data[position : position + 1] = bytes([generator.randrange(256)])
        elif kind == 1:
            del data[position : position + generator.randint(1, 20)]
        elif kind == 2:
            data[position:position] = data[max(0, position - generator.randint(1, 20)) : position]
        else:
            data[position : position + 8] = generator.choice([b"\xff" * 8, bytes(8), b"\x7f" * 8])
    return bytes(data)


def fuzz(path, name, seed, count):
    """Read mutations of a file. Only typed errors are allowed, and what is read adds up."""
    generator = random.Random(seed)
    original = (GOLDEN / name).read_bytes()
    for number in range(count):
        path.write_bytes(mutate(original, generator))
        try:
            contents = readers.read(path, depth=3, limits=Limits(structure_size=2**24, decompressed_size=2**24, seconds=20.0))
        except (CheckpointError, ConfigError):
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, mutation {number} of {name}: {error!r}") from error
        assert sum(entry.size for entry in contents.entries) + contents.other_size == contents.size, f"seed {seed}, mutation {number}"


@pytest.mark.parametrize("name", FILES)
def test_mutations_of_real_files(tmp_path, name):
    """Damaged files are typed errors, or are read without contradiction. More seeds: call `fuzz` with others."""
    fuzz(tmp_path / f"file{Path(name).suffix}", name, seed=SEED, count=100)


def test_control_fuzzing_finds_an_untyped_error(tmp_path, monkeypatch):
    """The control: with a reader that forgets to translate an error, the fuzzer fails."""
    monkeypatch.setattr(readers.safetensors_header, "malformed", lambda *_: KeyError("not translated"))
    with pytest.raises(AssertionError, match="not translated"):
        fuzz(tmp_path / "file", "model.safetensors", seed=1, count=300)


@pytest.mark.parametrize("name", ["zlib.joblib", "bz2.joblib", "xz.joblib"])
def test_damaged_compression(tmp_path, name):
    """Compressed data that is damaged is a CompressionError for every algorithm, and not an error of the disk."""
    data = bytearray((GOLDEN / name).read_bytes())
    data[20:60] = bytes(40)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CompressionError):
        readers.read(tmp_path / name)


def test_truncated_files(tmp_path):
    """A file that ends anywhere is a typed error, or what is left is read."""
    for name in FILES:
        data = (GOLDEN / name).read_bytes()
        for part in range(16):
            (tmp_path / name).write_bytes(data[: len(data) * part // 16])
            try:
                readers.read(tmp_path / name)
            except (CheckpointError, CompatibilityError):
                continue


def test_values_that_are_larger_than_the_files(tmp_path):
    """Values that claim the same bytes many times are damage: what remains for the rest would be negative."""
    chunks = [{"fqn": f"weight {number}", "relative_path": "__0_0.distcp", "offset": 0, "length": 5_000} for number in range(2)]
    storage = b"".join(pickle.dumps(chunk, 2)[2:-1] * 2 for chunk in chunks)  # as key and value
    metadata = b"\x80\x02}(X\x13\x00\x00\x00state_dict_metadata}(X\x08\x00\x00\x00weight 0}X\x08\x00\x00\x00weight 1}u"
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(metadata + b"X\x0c\x00\x00\x00storage_data}(" + storage + b"uu.")
    (tmp_path / "dcp" / "__0_0.distcp").write_bytes(bytes(5_000))
    leaf = {"key_metadata": [{"key": "w"}], "value_metadata": {}}
    (tmp_path / "orbax" / "w").mkdir(parents=True)
    (tmp_path / "orbax" / "w" / "0").write_bytes(bytes(5_000))
    (tmp_path / "orbax" / "_METADATA").write_text(json.dumps({"tree_metadata": {"a": leaf, "b": leaf}}))
    for name in ("dcp", "orbax"):
        with pytest.raises(IntegrityError, match="larger than its files"):
            readers.read(tmp_path / name)


def test_a_compressed_file_of_torch(tmp_path):
    """Storages that are larger than the file, because somebody compressed it, count with the bytes that they have inside."""
    with zipfile.ZipFile(GOLDEN / "torch.pt") as archive:
        members = {name: bytes(10_000) if "/data/" in name else archive.read(name) for name in archive.namelist()}
    contents = readers.read(write_zip(tmp_path / "a.pt", members, zipfile.ZIP_DEFLATED))
    assert contents.size > 30_000 > (contents.stored_size or 0)
    assert contents.other_size > 0
