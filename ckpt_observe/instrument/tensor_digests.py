"""Digests of samples of the content of tensors, if `CKPT_OBSERVE_TENSOR_DIGESTS` is set: a load that returns something else is recognised.

A sample is at most 4 KiB of a tensor: its beginning, its end, and places between them that depend on its size only, so that save and load
read the same. Only memory of the CPU is read: reading from another device would wait for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from functools import lru_cache
from typing import Any, Final

_BLOCK: Final = 256
"""Bytes that are read at one place."""
_BLOCKS: Final = 16
_TORCH_TYPES: Final = frozenset(("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"))
"""Subclasses may not have the memory that they seem to have."""


class NoSampleError(Exception):
    """The content of a tensor cannot be sampled. The message says why."""


def digest_tensor(tensor: Any) -> str:
    """Return a digest of a sample of the content. Raise NoSampleError if there is none."""
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    if kind in _TORCH_TYPES:
        address, size = _torch_memory(tensor)
    elif kind == "numpy.ndarray":
        address, size = _numpy_memory(tensor)
    else:
        raise NoSampleError("other kind of tensor")
    digest = hashlib.blake2b(digest_size=4)
    for start, length in sample_places(size):
        digest.update(ctypes.string_at(address + start, length))
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def sample_places(size: int) -> tuple[tuple[int, int], ...]:
    """Return offset and length of each block that is read of so many bytes. The same size always has the same places."""
    if size <= _BLOCK * _BLOCKS:
        return ((0, size),) if size else ()
    last = size - _BLOCK
    between = random.Random(size).sample(range(_BLOCK, last), _BLOCKS - 2)  # noqa: S311 - not a secret
    return tuple((start, _BLOCK) for start in (0, *sorted(between), last))


def _torch_memory(tensor: Any) -> tuple[int, int]:
    """Return the address and the size of a tensor of torch."""
    device = tensor.device.type
    if device != "cpu":
        raise NoSampleError(f"on device {device}")
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        raise NoSampleError("sparse or quantized")
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise NoSampleError("not contiguous")
    size = tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    address, start, end = tensor.data_ptr(), storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    if size and not (address and start <= address and address + size <= end):
        raise NoSampleError("without memory")
    return address, size


def _numpy_memory(array: Any) -> tuple[int, int]:
    """Return the address and the size of an array of NumPy."""
    if array.dtype.hasobject:
        raise NoSampleError("Python objects")
    if not array.flags.c_contiguous:
        raise NoSampleError("not contiguous")
    return array.ctypes.data, array.nbytes
