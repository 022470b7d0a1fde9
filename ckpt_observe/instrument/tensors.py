"""What the tensors of a state are: how many, of which types, which are the largest, and how many bytes each top-level key has.

Tensors of all libraries are recognised by their attributes, so no library is imported here. Contents are never read.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ckpt_observe.instrument.saver_attributes import size_attributes
from ckpt_observe.record import redact
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER
from ckpt_observe.support.host_exceptions import ignore_errors
from ckpt_observe.tensor_summary import dtype_name

_MAX_VALUES: Final = 50_000
"""Values of a state that are looked at: about 50 ms. The largest checkpoints of one process have some 10,000 tensors."""
_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")
_PLAIN: Final = frozenset((int, float, str, bytes, bool, type(None)))
_STEP_KEYS: Final = ("global_step", "step", "iteration")
_SPARSE_PARTS: Final = {
    "sparse_coo": ("_indices", "_values"),
    **dict.fromkeys(("sparse_csr", "sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("sparse_csc", "sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}
"""The methods that return the tensors of which a sparse tensor of torch consists, by its layout. It has no memory of its own."""


def describe_tensors(state: Any) -> dict[str, Any]:
    """Return the attributes about the tensors of a state. An empty dict if it has none."""
    return TensorSearch(state).attributes()


def find_step(state: Any) -> int | None:
    """Return the training step in a state, if a top-level key says so."""
    if issubclass(type(state), dict):
        for key in _STEP_KEYS:
            step = dict.get(state, key)
            if type(step) is int:
                return step
    return None


class TensorSearch:
    """The tensors in the dicts, lists and tuples of a state.

    Methods of subclasses are not called: the `items()` of a dict that loads its values when they are used would load all of them.
    """

    def __init__(self, state: Any) -> None:
        self.tensors: list[tuple[int, tuple[str, ...], Any]] = []
        """Size, path and tensor. Memory that several tensors share belongs to the first of them."""
        self._bytes_by_key: Counter[str] = Counter()
        self._bytes_by_dtype: Counter[str] = Counter()
        self._visited: set[Any] = set()
        """Ids of containers and of memory: a state may contain itself, and tensors may share memory."""
        self.is_complete = self._visit_all(state)
        """Whether all values were visited."""

    def attributes(self) -> dict[str, Any]:
        """Return the attributes about the tensors. An empty dict if there are none."""
        if not self.tensors:
            return {}
        largest = heapq.nlargest(LARGEST_KEYS, [(size, path) for size, path, _ in self.tensors])
        return {
            names.TENSORS: len(self.tensors),
            names.TENSOR_DTYPES: [dtype for dtype, _ in self._bytes_by_dtype.most_common(LARGEST_KEYS)],
            names.TENSOR_NAMES: [path_name(path) for _, path in largest],
            names.TENSOR_SIZES: [size for size, _ in largest],
            **size_attributes(self._bytes_by_key),
        }

    def _visit_all(self, state: Any) -> bool:
        """Visit at most `_MAX_VALUES` values, in the order of the state. Return whether these are all."""
        waiting: list[tuple[Any, tuple[str, ...]]] = [(state, ())]
        for _ in range(_MAX_VALUES):
            if not waiting:
                return True
            value, path = waiting.pop()
            kind: type = type(value)
            if _is_tensor(kind):
                self._add(value, path)
            elif issubclass(kind, dict | list | tuple) and id(value) not in self._visited:
                self._visited.add(id(value))
                items = list(_items(kind, value))
                waiting += [(each, (*path, str(key))) for key, each in reversed(items) if type(each) not in _PLAIN]
        return not waiting

    def _add(self, tensor: Any, path: tuple[str, ...]) -> None:
        memory, size = ("tensor", id(tensor)), 0
        with ignore_errors(Exception):  # libraries add kinds of tensors without accessible memory; the others still count
            memory, size = _memory(tensor)
        size = 0 if memory in self._visited else size
        self._visited.add(memory)
        self.tensors.append((size, path, tensor))
        self._bytes_by_dtype[dtype_name(tensor.dtype)] += size
        if path:
            self._bytes_by_key[path[0]] += size


def _items(kind: type, container: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values that a dict, list or tuple, or an object of a subclass, contains."""
    if issubclass(kind, dict):
        return dict.items(container)
    return enumerate((list if issubclass(kind, list) else tuple).__iter__(container))


def _memory(tensor: Any) -> tuple[tuple[str, int], int]:
    """Return what identifies the memory of a tensor, and its size. torch stores the whole memory, also of a part of a tensor.

    Of a tensor that is distributed over several processes, the part of this process counts.
    """
    tensor = getattr(tensor, "_local_tensor", tensor)
    parts = _SPARSE_PARTS.get(str(getattr(tensor, "layout", "")).rpartition(".")[2])
    if parts is not None:
        return ("tensor", id(tensor)), sum(dict(_memory(getattr(tensor, part)()) for part in parts).values())
    if hasattr(type(tensor), "untyped_storage"):
        storage = tensor.untyped_storage()
        return ("storage", storage._cdata), storage.nbytes()
    return ("tensor", id(tensor)), tensor.nbytes


@lru_cache(maxsize=1024)
def _is_tensor(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("dtype", "shape", "nbytes"))


@lru_cache(maxsize=1024)
def path_name(path: tuple[str, ...]) -> str:
    """Return the name of the value at a path, or OTHER if the path may be content."""
    text = redact.text(".".join(path))
    return text if _PATH.fullmatch(text) else OTHER
