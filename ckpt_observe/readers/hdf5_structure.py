"""The datasets of an HDF5 file: names, types, shapes and bytes, from its structure alone.

Not h5py: libhdf5 opens other files that links name, loads plug-ins, and cannot be limited, so it is not for untrusted files. This reads
the version of the format that h5py writes by default, and Keras with it:
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t11.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ckpt_observe.errors import CompatibilityError
from ckpt_observe.readers.source import Limits, exceeds, malformed

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_SHORT_NAME: Final = 128
_MAX_NAME: Final = 4096
"""Bytes of a name, and of all names from the root to a dataset. Longer ones would let nested groups take the square of the file."""
_MAX_RANK: Final = 32
_UNDEFINED: Final = 0xFFFF_FFFF_FFFF_FFFF
_DATASPACE, _LINK_INFO, _DATATYPE, _LAYOUT, _CONTINUATION, _SYMBOL_TABLE = 0x01, 0x02, 0x03, 0x08, 0x10, 0x11
_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2
_SYMBOLIC_LINK: Final = 2
_GROUP_NODE, _CHUNK_NODE = 0, 1
_CLASSES: Final = {3: "str", 4: "bitfield", 6: "compound", 7: "reference", 8: "enum", 9: "vlen", 10: "array"}

Read = Callable[[int, int], bytes]
"""Returns the bytes of the file from a start, by their number. IntegrityError if the file ends before."""


class Dataset(NamedTuple):
    """An array of the file."""

    name: str
    """Names of its groups and its own, with slashes between them."""
    dtype: str
    shape: tuple[int, ...]
    size: int
    """Bytes in the file."""


class Hdf5Structure:
    """Follows groups and object headers. Data is not read, and links to names or other files are not followed."""

    def __init__(self, read: Read, location: str, limits: Limits) -> None:
        self._read = read
        self._location = location
        self._limits = limits
        self._steps = 0

    def datasets(self) -> Iterator[Dataset]:
        """Yield all datasets. CompatibilityError if the file has another version of the format."""
        start = self._read(0, 96)
        if not start.startswith(SIGNATURE):
            raise malformed(self._location, "it does not start like an HDF5 file")
        if start[8] != 0 or start[13] != 8 or start[14] != 8:
            raise self._unsupported(f"superblock {start[8]}")
        groups = [("", struct.unpack_from("<Q", start, 64)[0])]
        visited = set()
        while groups:
            prefix, address = groups.pop()
            if address in visited:  # a group may be in several groups, or in itself
                continue
            visited.add(address)
            if len(prefix) > _MAX_NAME:
                raise malformed(self._location, f"its HDF5 groups are nested too deeply: {prefix[:80]!r}...")
            messages = self._messages(address)
            if _SYMBOL_TABLE in messages:
                tree, heap = self._unpack("<QQ", messages[_SYMBOL_TABLE])
                groups += [(f"{prefix}{name}/", child) for name, child in self._links(tree, heap)]
            elif _LINK_INFO in messages:  # also of groups with links to other files
                raise self._unsupported("groups of version 2")
            elif _DATATYPE in messages and _DATASPACE in messages:
                shape, layout = self._shape(messages[_DATASPACE]), messages.get(_LAYOUT, b"")
                yield Dataset(prefix[:-1], self._dtype(messages[_DATATYPE]), shape, self._stored_size(layout))

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > self._limits.steps:
            raise exceeds(f"the number of objects in {self._location}", "steps", self._limits.steps)

    def _unsupported(self, what: str) -> CompatibilityError:
        text = f"{self._location} has a version of HDF5 that is not supported ({what}). See it with h5py, if you trust it"
        return CompatibilityError(text, code="compatibility.unknown_format")

    def _unpack(self, layout: str, data: bytes, offset: int = 0) -> tuple[int, ...]:
        try:
            return struct.unpack_from(layout, data, offset)
        except struct.error as error:
            raise malformed(self._location, "a part of its HDF5 structure is too short") from error

    def _expect(self, address: int, signature: bytes, size: int) -> bytes:
        self._count_step()
        data = self._read(address, size)
        if not data.startswith(signature):
            raise malformed(self._location, f"byte {address} of its HDF5 structure is not {signature.decode()}")
        return data

    def _messages(self, address: int) -> dict[int, bytes]:
        """Return the messages of an object header by their type, the first of each."""
        self._count_step()
        header = self._read(address, 16)
        if header[0] != 1:
            raise self._unsupported("object header 2" if header.startswith(b"OHDR") else f"object header {header[0]}")
        count, size = struct.unpack_from("<H4xL", header, 2)
        blocks = [(address + 16, size)]
        messages: dict[int, bytes] = {}
        while blocks and count > 0:
            start, size = blocks.pop(0)
            block = self._read(start, size)
            position = 0
            while position + 8 <= len(block) and count > 0:
                self._count_step()
                kind, length = struct.unpack_from("<HH", block, position)
                data = block[position + 8 : position + 8 + length]
                if kind == _CONTINUATION:
                    blocks.append((self._unpack("<QQ", data)[0], self._unpack("<QQ", data)[1]))
                messages.setdefault(kind, data)
                position += 8 + length
                count -= 1
        return messages

    def _links(self, tree: int, heap: int) -> Iterator[tuple[str, int]]:
        """Yield name and address of the members of a group."""
        size, _, names = self._unpack("<QQQ", self._expect(heap, b"HEAP", 32), 8)
        for leaf in self._leaf_entries(tree, _GROUP_NODE, key_size=8):
            [node] = struct.unpack_from("<Q", leaf, 8)
            [count] = self._unpack("<H", self._expect(node, b"SNOD", 8), 6)
            entries = self._read(node + 8, count * 40)
            for position in range(0, len(entries), 40):
                self._count_step()
                offset, address, cache_type = struct.unpack_from("<QQL", entries, position)
                if cache_type != _SYMBOLIC_LINK:
                    yield self._name(names, offset, size), address

    def _name(self, names: int, offset: int, size: int) -> str:
        if offset >= size:
            raise malformed(self._location, "a name of its HDF5 structure is outside of the heap")
        for length in (_SHORT_NAME, _MAX_NAME):
            text, end, _ = self._read(names + offset, min(size - offset, length)).partition(b"\0")
            if end:
                return text.decode("utf-8", "replace")
        raise malformed(self._location, "a name of its HDF5 structure has no end")

    def _leaf_entries(self, root: int, kind: int, key_size: int) -> Iterator[bytes]:
        """Yield the key and the address of each entry in the leaves of a B-tree."""
        nodes, visited, width = [root], set(), key_size + 8
        while nodes:
            address = nodes.pop()
            if address in visited:
                raise malformed(self._location, "a B-tree of its HDF5 structure contains itself")
            visited.add(address)
            node_kind, level, count = self._unpack("<BBH", self._expect(address, b"TREE", 24), 4)
            if node_kind != kind:
                raise malformed(self._location, "a B-tree of its HDF5 structure is of another kind than expected")
            data = self._read(address + 24, count * width)
            entries = [data[position : position + width] for position in range(0, len(data), width)]
            if level:
                nodes += [struct.unpack_from("<Q", entry, key_size)[0] for entry in reversed(entries)]
            else:
                yield from entries

    def _shape(self, message: bytes) -> tuple[int, ...]:
        version, rank = self._unpack("<BB", message)
        if version not in (1, 2) or rank > _MAX_RANK:
            raise self._unsupported(f"dataspace {version}")
        return self._unpack(f"<{rank}Q", message, 8 if version == 1 else 4)

    def _dtype(self, message: bytes) -> str:
        kind, flags, size = self._unpack("<BBxxL", message)
        match kind & 0x0F:
            case 0:
                return f"{'int' if flags & 0x08 else 'uint'}{8 * size}"
            case 1:
                is_brain = size == 2 and self._unpack("<B", message, 13)[0] == 8  # bits of the exponent
                return "bfloat16" if is_brain else f"float{8 * size}"
            case 5:
                return f"V{size}"  # opaque; Keras stores bfloat16 like this
            case other:
                return _CLASSES.get(other, "unknown")

    def _stored_size(self, message: bytes) -> int:
        """Return the bytes of the data, as the layout says; 0 if nothing was written."""
        if not message:
            return 0
        version, kind = self._unpack("<BB", message)
        if version != 3:
            raise self._unsupported(f"layout {version}")
        if kind == _COMPACT:
            return self._unpack("<H", message, 2)[0]
        if kind == _CONTIGUOUS:
            address, size = self._unpack("<QQ", message, 2)
            return 0 if address == _UNDEFINED else size
        if kind == _CHUNKED:
            dimensions, address = self._unpack("<BQ", message, 2)
            return 0 if address == _UNDEFINED else self._chunks_size(address, dimensions)
        raise self._unsupported(f"layout class {kind}")

    def _chunks_size(self, root: int, dimensions: int) -> int:
        key_size = 8 + 8 * dimensions  # bytes of the chunk, filters, position
        return sum(struct.unpack_from("<L", entry)[0] for entry in self._leaf_entries(root, _CHUNK_NODE, key_size))
