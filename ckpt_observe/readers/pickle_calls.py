"""What well-known calls in pickles mean: arrays of NumPy and tensors of torch get their type, dtype and shape. Nothing is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ckpt_observe.readers.pickle_nodes import MAX_ARGUMENTS, Composite, Node

_TENSOR: Final = "torch.Tensor"
_PARAMETER: Final = "torch.nn.Parameter"
_ARRAY: Final = "numpy.ndarray"
_FROM_TYPE: Final = "torch._tensor._rebuild_from_type_v2"

STORAGE_DTYPES: Final = {
    "DoubleStorage": ("float64", 8),
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
    "ComplexDoubleStorage": ("complex128", 16),
    "ComplexFloatStorage": ("complex64", 8),
    "QUInt8Storage": ("quint8", 1),
    "QInt8Storage": ("qint8", 1),
    "QInt32Storage": ("qint32", 4),
    "UntypedStorage": ("", 1),
}
"""dtype and bytes per element, by the class of a torch storage."""


def describe_call(result: Composite, name: str, arguments: Sequence[Node]) -> None:
    """Give the result of a call its type, dtype and shape. Calls that are not known keep the name of the function as their type."""
    describe = _CALLS.get(name.replace("numpy._core", "numpy.core"))
    if describe is None:
        return
    try:
        describe(result, arguments)
    except IndexError:  # not the arguments that this function has: the type is still its name
        return


def describe_state(node: Composite) -> None:
    """Use the state that an object got."""
    if node.type == "numpy.dtype":
        order = node.get(1)
        if order is not None and order.value in ("<", ">") and node.dtype:
            node.dtype = f"{order.value}{node.dtype.lstrip('<>|=')}"
        node.items, node.count = (), None
    elif node.type == _ARRAY and (shape := node.get(1)) is not None and (dtype := node.get(2)) is not None:
        node.shape, node.dtype = shape.integers(), dtype.dtype
        node.items, node.count = (), None


def element_size(dtype: str) -> int | None:
    """Return the bytes of an element of a NumPy dtype such as `<f8` or `U10`; None if that is not known."""
    code, digits = dtype.lstrip("<>|=")[:1], dtype.lstrip("<>|=")[1:]
    if not digits.isdecimal() or code == "O" or len(digits) > 9:
        return None
    return int(digits) * (4 if code == "U" else 1)


def warnings_about(imports: Iterable[str]) -> tuple[str, ...]:
    """Return a warning if loading could run commands or code."""
    suspicious = sorted(name for name in imports if _is_suspicious(name))
    if not suspicious:
        return ()
    names = ", ".join(suspicious[:10])
    return (f"loading this would import {names}, which can run commands or code. Do not load it unless you wrote it",)


def _is_suspicious(name: str) -> bool:
    module = name.partition(".")[0]
    return module in _SUSPICIOUS_MODULES or name.removeprefix("__builtin__.").removeprefix("builtins.") in _SUSPICIOUS_BUILTINS


_SUSPICIOUS_MODULES: Final = frozenset(
    "os posix nt subprocess sys importlib imp runpy shutil socket ctypes cffi pty code codeop webbrowser pickle _pickle marshal dill"  # noqa: SIM905
    " cloudpickle multiprocessing urllib http requests ftplib smtplib pip pydoc bdb pdb timeit operator atexit commands popen2".split()
)
_SUSPICIOUS_BUILTINS: Final = frozenset(
    "eval exec execfile compile open input getattr setattr delattr globals locals vars __import__ breakpoint apply".split()  # noqa: SIM905
)


def describe_storage(node: Composite) -> tuple[str, int]:
    """Give the node of a torch storage its type and dtype. Return its key and the bytes that its id claims."""
    kind, storage_type, key, _, count = [argument.resolved for argument in node.args[:5]]
    if kind.value != "storage" or not isinstance(count.value, int) or count.value < 0:
        raise IndexError("not the id of a storage")
    node.type = "torch.Storage"
    node.value = str(key.value)
    node.dtype, width = STORAGE_DTYPES.get(str(storage_type.value).rpartition(".")[2], ("", 1))
    return node.value, count.value * width


def _tensor(result: Composite, arguments: Sequence[Node]) -> None:
    storage, _, size = arguments[:3] if len(arguments) >= 3 else _too_few()
    result.type = _TENSOR
    result.shape, result.dtype = size.integers(), storage.dtype
    if storage.value is not None:
        result.details = {"storage": str(storage.value)}
    if storage.details.get("elements") == math.prod(result.shape):  # otherwise it is a view of a part
        result.digest = storage.digest


def _tensor_v3(result: Composite, arguments: Sequence[Node]) -> None:
    _tensor(result, arguments)
    result.dtype = str(arguments[6].value).removeprefix("torch.")


def _parameter(result: Composite, arguments: Sequence[Node]) -> None:
    _copy(result, arguments[0])
    result.type = _PARAMETER


def _subclass(result: Composite, arguments: Sequence[Node]) -> None:
    function, kind, inner = arguments[:3] if len(arguments) >= 3 else _too_few()
    if function.value != _FROM_TYPE:  # it may be an argument of itself
        describe_call(result, str(function.value), [child.resolved for _, child in inner.items[:MAX_ARGUMENTS]])
    result.type = str(kind.value)


def _sparse_tensor(result: Composite, arguments: Sequence[Node]) -> None:
    parts = [child.resolved for _, child in arguments[1].items]
    result.type, result.shape, result.dtype = _TENSOR, parts[2].shape or parts[2].integers(), parts[1].dtype
    result.details = {"layout": "sparse"}


def _meta_tensor(result: Composite, arguments: Sequence[Node]) -> None:
    dtype, size = arguments[:2] if len(arguments) >= 2 else _too_few()
    result.type, result.shape, result.dtype = _TENSOR, size.integers(), str(dtype.value).removeprefix("torch.")


def _torch_size(result: Composite, arguments: Sequence[Node]) -> None:
    result.take_items(arguments[0])


def _array(result: Composite, arguments: Sequence[Node]) -> None:
    result.type = str(arguments[0].value)
    if result.type in ("numpy.core.multiarray.ndarray", "numpy._core.multiarray.ndarray"):
        result.type = _ARRAY


def _array_from_buffer(result: Composite, arguments: Sequence[Node]) -> None:
    result.type, result.dtype, result.shape = _ARRAY, arguments[1].dtype, arguments[2].integers()


def _scalar(result: Composite, arguments: Sequence[Node]) -> None:
    result.type, result.dtype = "numpy.generic", arguments[0].dtype


def _dtype(result: Composite, arguments: Sequence[Node]) -> None:
    result.dtype = str(arguments[0].value)


def _class_of_first_argument(result: Composite, arguments: Sequence[Node]) -> None:
    result.type = str(arguments[0].value)


def _builtin_container(result: Composite, arguments: Sequence[Node]) -> None:
    result.count = 0
    if arguments and arguments[0].count is not None:
        result.take_items(arguments[0])


def _copy(result: Composite, source: Node) -> None:
    result.shape, result.dtype, result.details, result.digest = source.shape, source.dtype, source.details, source.digest


def _too_few() -> Sequence[Node]:
    raise IndexError("too few arguments")


_CALLS: Final[dict[str, Callable[[Composite, Sequence[Node]], None]]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_qtensor": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _sparse_tensor,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta_tensor,
    _FROM_TYPE: _subclass,
    "torch.Size": _torch_size,
    "numpy.core.multiarray._reconstruct": _array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _array_from_buffer,
    "numpy.dtype": _dtype,
    "copyreg._reconstructor": _class_of_first_argument,
    "copy_reg._reconstructor": _class_of_first_argument,
    "collections.OrderedDict": _builtin_container,
    "collections.defaultdict": lambda result, _: _builtin_container(result, ()),
    "collections.deque": _builtin_container,
    "builtins.set": _builtin_container,
    "builtins.frozenset": _builtin_container,
    "__builtin__.set": _builtin_container,
    "builtins.list": _builtin_container,
    "builtins.dict": _builtin_container,
}
