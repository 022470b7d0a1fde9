"""Turns the value of a pickle into contents, and reads plain pickles and joblib files."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, largest_first
from ckpt_observe.readers.pickle_calls import describe_state, element_size, warnings_about
from ckpt_observe.readers.pickle_machine import PickleMachine
from ckpt_observe.readers.pickle_nodes import Composite, Node
from ckpt_observe.readers.source import SourceFile, malformed
from ckpt_observe.readers.streams import ByteStream, file_stream

_JOBLIB_ARRAY = "joblib.numpy_pickle.NumpyArrayWrapper"
_PICKLE_WARNING = "loading a pickle runs what it names. `imports` lists the names; load it only if you trust its writer"


def to_contents(
    format: str, source: SourceFile, root: Node, imports: Iterable[str], depth: int, *, size: int | None = None, version: str = ""
) -> Contents:
    """Return the items of the outermost value as entries; a value without items is an entry itself."""
    node = root.resolved
    if node.items:
        entries = largest_first(child.entry(key.name(), depth - 1) for key, child in node.items)
    else:
        entries = (root.entry("value", depth - 1),)
    total = source.size if size is None else size
    return Contents(
        format=format,
        location=source.path,
        size=total,
        entries=entries,
        other_size=total - sum(entry.size for entry in entries),
        stored_size=source.size,
        imports=tuple(sorted(imports)),
        warnings=(*node.warnings("items"), *warnings_about(imports), _PICKLE_WARNING),
        metadata={"type": node.type},
        version=version,
    )


def read_pickle(candidate: Candidate) -> Contents:
    """Return the keys of a pickle, or of a file of joblib, in which the data of arrays follows the opcodes that describe them."""
    source = candidate.source
    stream = file_stream(source)
    machine = PickleMachine(stream, source.limits, source.path, depth=candidate.request.depth)
    machine.on_build = _JoblibArrays(machine, stream, source.path).describe
    root = machine.run()
    size = max(source.size, stream.position)  # a compressed file has more bytes inside
    format = "joblib" if any(name.startswith("joblib.") for name in machine.imports) else "pickle"
    return to_contents(format, source, root, machine.imports, candidate.request.depth, size=size)


class _JoblibArrays:
    def __init__(self, machine: PickleMachine, stream: ByteStream, location: str) -> None:
        self._machine = machine
        self._stream = stream
        self._location = location

    def describe(self, node: Composite) -> None:
        """Give an array of joblib its dtype and shape, and skip its data."""
        describe_state(node)
        if node.type != _JOBLIB_ARRAY:
            return
        shape, dtype, kind, alignment = (node.get(name) for name in ("shape", "dtype", "subclass", "numpy_array_alignment_bytes"))
        if shape is None or dtype is None:
            raise malformed(self._location, "an array of joblib has no shape or dtype")
        node.shape, node.dtype = shape.integers(), dtype.dtype
        if min(node.shape, default=0) < 0:
            raise malformed(self._location, f"an array of joblib has the shape {node.shape!s:.80}")
        node.type = str(kind.value) if kind is not None else "numpy.ndarray"
        node.items, node.count = (), None
        if node.dtype.lstrip("<>|=").startswith("O"):  # its elements are another pickle
            self._machine.follow_inner()
            return
        width = element_size(node.dtype)
        if width is None:
            raise malformed(self._location, f"the size of the dtype {node.dtype!r} of an array is not known")
        if alignment is not None and alignment.value is not None:
            self._stream.skip(self._stream.read(1)[0])
        self._stream.skip(math.prod(node.shape) * width)
