"""What the state of a LangGraph checkpoint says: bytes per channel, values that came back altered, and the value that cannot be saved.

Savers serialize a state in three ways: each changed channel on its own (memory, PostgreSQL), the whole checkpoint as one block (SQLite and
most others), or plain values as JSON beside the channels (PostgreSQL). Channels in a block are measured on some saves only. Nothing here
records a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextvars import copy_context
from typing import Any, Final

import msgspec
from msgspec import Raw

from ckpt_observe.instrument.library_call import Arguments, LibraryOperation
from ckpt_observe.instrument.saver_attributes import altered_keys, key_names, size_attributes
from ckpt_observe.record.operation import current_position
from ckpt_observe.record.phase import Sizes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import OTHER
from ckpt_observe.support.host_exceptions import raise_host_exception

_SAMPLE_INTERVAL: Final = 20
"""Saves of a thread after which the channels of a block are measured again, unless its size changes by `_SAMPLE_CHANGE` before."""
_SAMPLE_CHANGE: Final = 0.1
_MAX_THREADS: Final = 1024
"""Threads whose sizes are remembered, the latest ones."""
_MAX_CHANNELS: Final = 256
_MAX_COMPARED: Final = 4 << 20
"""Bytes of a serialized value that is compared with what was loaded. Reading it again takes about 5 ns per byte."""
_MAX_VALUES: Final = 20_000
_MAX_ATTEMPTS: Final = 500
"""Values that are serialized again at most, to find the one that cannot be."""
_MAX_SEARCHED: Final = 16 << 20
"""Bytes after which that search ends: the caller waits for it."""
_NOTHING: Final = "null"
"""Begin of the format of None. It is stored as nothing, beside values in the format of the serializer."""
_UNKNOWN: Final = object(), 0
"""Version and size of a channel that was not saved before."""
_PLAIN_TYPES: Final = (dict, list, tuple, str, int, float, bool, bytes)


class _Block(msgspec.Struct):
    """A serialized checkpoint, of which only the channels are read."""

    channel_values: dict[str, Raw] = {}


_decode_msgpack: Final = msgspec.msgpack.Decoder(_Block).decode
_decode_json: Final = msgspec.json.Decoder(_Block).decode


class _ThreadSizes:
    """What is known about the channels of one thread and namespace."""

    __slots__ = ("channels", "largest_block", "smallest_block", "unsampled_saves")

    def __init__(self) -> None:
        self.channels: dict[str, tuple[Any, int]] = {}
        """Version and bytes of each channel when it was last saved. Another database may have another version of the same thread."""
        self.smallest_block = self.largest_block = self.unsampled_saves = 0
        """The channels of a block are not measured if its size is between these two, in as many saves."""


_threads: Final[dict[Any, _ThreadSizes]] = {}
_TASK_ID, _NAMESPACE = names.TASK_ID, names.NAMESPACE


def _sizes_of_thread(operation: LibraryOperation) -> _ThreadSizes:
    attributes = operation.begin_attributes or {}
    key = attributes.get(_TASK_ID), attributes.get(_NAMESPACE)
    sizes = _threads.get(key)
    if sizes is None:
        sizes = _threads[key] = _ThreadSizes()
        while len(_threads) > _MAX_THREADS:
            _threads.pop(next(iter(_threads)), None)
    return sizes


def _sample_block(operation: LibraryOperation, block: bytes) -> None:
    """Record the sizes of the channels in a serialized checkpoint, if it is time to measure them again."""
    sizes, size = _sizes_of_thread(operation), len(block)
    if sizes.unsampled_saves and sizes.smallest_block <= size <= sizes.largest_block:
        sizes.unsampled_saves -= 1
        return
    sizes.smallest_block, sizes.largest_block = size - int(_SAMPLE_CHANGE * size), size + int(_SAMPLE_CHANGE * size)
    sizes.unsampled_saves = _SAMPLE_INTERVAL - 1
    channels = {name: len(raw) for name, raw in _decode_msgpack(block).channel_values.items()}
    operation.set_trusted({**size_attributes(channels), names.KEY_SIZES_SAMPLED: True})


def items_of(argument: Any) -> Sequence[Any]:
    """Return an argument that is a list or the like; nothing for an iterator, because it can be read only once, by the saver."""
    return argument if type(argument) is list or isinstance(argument, Sequence) else ()


class StateDetails(msgspec.Struct):
    """What is remembered about the state while one operation runs."""

    saver: Any
    state: Collection[tuple[str, Any]] = ()
    versions: Any = None
    sizes: dict[str, int] | None = None
    """Bytes of channels whose names are known when they are serialized."""
    sizes_by_id: dict[int, int] | None = None
    """Bytes of serialized values by their identity: the serializer gets a value without the name of its channel."""
    block: bytes | None = None
    """The serialized checkpoint, if all channels are in it."""
    pairs: list[tuple[bytes, Any]] | None = None
    """Serialized values and what the serializer made of them. None if they are not compared: a history may be many checkpoints."""
    loaded: Any = None
    """The `CheckpointTuple` that a load returned."""
    format: str = ""

    @classmethod
    def of_call(cls, operation: str, saver: Any, arguments: Arguments) -> StateDetails:
        """Return what the arguments of a call of a saver say about the state."""
        if operation == "save":
            checkpoint = arguments["checkpoint"]
            return cls(saver, (checkpoint.get("channel_values") or {}).items(), checkpoint.get("channel_versions"))
        pairs: list[tuple[bytes, Any]] | None = [] if operation == "load" and "channels" not in arguments else None
        return cls(saver, items_of(arguments.get("writes")) if operation == "append" else (), pairs=pairs)

    # Called by the serializer

    @staticmethod
    def add_serialized(operation: LibraryOperation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Sizes:
        """Record the size of a channel, or of all channels in a block. Return the size of the whole."""
        details = operation.details
        format, data = result
        value = args[0] if args else kwargs["obj"]
        if format != details.format and not format.startswith(_NOTHING):
            details.format = format
        size = len(data)
        if type(value) is not dict or "channel_values" not in value:
            if details.sizes_by_id is None:
                details.sizes_by_id = {}
            details.sizes_by_id[id(value)] = size
        elif format == "msgpack":
            details.block = data
        return None, size

    @staticmethod
    def add_json(operation: LibraryOperation, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> Sizes:
        """Record the sizes of the channels that PostgreSQL stores as JSON. Return the size of the whole."""
        value = getattr(args[0], "obj", None)
        if operation.name == "save" and type(value) is dict and value.get("channel_values"):
            sizes = {name: len(raw) for name, raw in _decode_json(result).channel_values.items()}
            operation.details.sizes = {**(operation.details.sizes or {}), **sizes}
        return None, len(result or b"")

    @staticmethod
    def add_loaded(operation: LibraryOperation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Sizes:
        """Keep a loaded value, to be compared with the serialized one when the load has ended. Return the size of the latter."""
        details = operation.details
        format, data = args[0] if args else kwargs["data"]
        if not format.startswith(_NOTHING):
            details.format = format
        if details.pairs is not None and format == "msgpack" and data and len(data) <= _MAX_COMPARED:
            details.pairs.append((data, result))
        return len(data or b""), None

    # When the operation ends

    @staticmethod
    def record(operation: LibraryOperation, error: BaseException | None) -> None:
        """Set the attributes of the state."""
        details = operation.details
        format = details.format
        if format:
            if "+" in format:
                format, _, cipher = format.partition("+")
                operation.set({names.CIPHER: cipher})
            operation.set_trusted({names.FORMAT: format})
        if error is not None:
            if operation.find_failed_phase(error) == "serialize":
                operation.set({names.ERROR_PATH: details._find_unserializable()})
        elif operation.name == "save":
            if details.block is None:
                details._record_sizes(operation)
            else:
                _sample_block(operation, details.block)
        elif operation.name == "load" and details.loaded is not None:
            details._record_altered(operation)
        elif operation.name == "list" and not operation.items:
            operation.set_trusted({names.COUNT: 0})

    def _record_sizes(self, operation: LibraryOperation) -> None:
        if self.sizes is None and self.sizes_by_id is None:
            return
        size_by_id, size_in_json, version_of = (self.sizes_by_id or {}).get, (self.sizes or {}).get, (self.versions or {}).get
        latest = _sizes_of_thread(operation).channels
        sizes: dict[str, int] = {}
        for channel, value in self.state:
            size, version = size_by_id(id(value), size_in_json(channel)), version_of(channel)
            if size is not None:
                latest[channel] = version, size
            else:  # a channel that did not change is not serialized again
                known_version, size = latest.get(channel, _UNKNOWN)
                if known_version != version:
                    continue
            sizes[channel] = size
        while len(latest) > _MAX_CHANNELS:
            del latest[next(iter(latest))]
        operation.set_trusted(size_attributes(sizes))

    def _record_altered(self, operation: LibraryOperation) -> None:
        altered: dict[str, str] = {}
        values = self.loaded.checkpoint.get("channel_values") or {}
        writes = [(channel, value) for _task, channel, value in self.loaded.pending_writes or ()]
        channels = {id(value): channel for channel, value in (*writes, *values.items())}
        for data, value in self.pairs or ():
            comparison = _Comparison(data)
            if type(value) is dict and "channel_values" in value and isinstance(comparison.stored, dict):
                for channel, stored in comparison.stored.get("channel_values", {}).items():
                    comparison.compare(stored, value["channel_values"].get(channel), str(channel))
            else:
                nameless = [name for name, each in values.items() if each is None] if value is None else []
                comparison.compare(comparison.stored, value, nameless[0] if len(nameless) == 1 else channels.get(id(value), OTHER))
            altered.update(comparison.altered)
        if altered:
            operation.set({names.ALTERED_KEYS: altered_keys(altered), names.ALTERED_TYPES: sorted(set(altered.values()))})

    def _find_unserializable(self) -> str | None:
        """Return the path of the first value that the serializer refuses. Only for LangGraph's own: others may have side effects."""
        serde = self.saver.serde
        if not type(serde).__module__.startswith("langgraph."):
            return None
        context = copy_context()  # these calls are not part of the operation, which stays current although a signal handler raises here
        context.run(current_position.set, None)
        return context.run(_Search(serde.dumps_typed).find_in, list(self.state))


class _Stored:
    """A value that msgpack stores as an extension: a class and its arguments, or an array."""

    def __init__(self, content: Any) -> None:
        is_object = isinstance(content, list) and len(content) > 2 and isinstance(content[1], str)
        self.type = f"{content[0]}.{content[1]}" if is_object else "array"
        self.fields: dict[str, Any] = content[2] if is_object and isinstance(content[2], dict) else {}


class _Comparison:
    """Compares a serialized value with what was loaded from it. LangGraph returns None or plain data for a type that it cannot build."""

    def __init__(self, data: bytes) -> None:
        self._objects = 0
        self._values = 0
        self.altered: dict[str, str] = {}
        """The type of an altered value, by the name of its channel."""
        self.stored = self._decode(data)

    def _decode(self, data: bytes | memoryview) -> Any:
        try:
            return msgspec.msgpack.decode(data, ext_hook=self._decode_extension)
        except (msgspec.DecodeError, RecursionError):  # the serializer could read it: a feature that msgspec lacks
            return None

    def _decode_extension(self, _code: int, data: memoryview) -> _Stored:
        self._objects += 1
        return _Stored(self._decode(data))

    def compare(self, stored: Any, value: Any, channel: str) -> None:
        """Record the type of each object in `stored` that is plain data in `value`."""
        self._values += 1
        if not self._objects or self._values > _MAX_VALUES or channel in self.altered:
            return
        if isinstance(stored, _Stored):
            if value is None or (type(value) in _PLAIN_TYPES and type(value).__name__ != stored.type.rpartition(".")[2]):
                self.altered[channel] = stored.type
                return
            fields = getattr(value, "__dict__", {})
            for name, each in stored.fields.items():
                if name in fields:
                    self.compare(each, fields[name], channel)
        elif type(stored) is dict and type(value) is dict:
            for key, each in stored.items():
                self.compare(each, value.get(key), channel)
        elif type(stored) is list and type(value) in (list, tuple) and len(stored) == len(value):
            for each, other in zip(stored, value, strict=True):
                self.compare(each, other, channel)


class _Search:
    """Searches a state for a value that cannot be serialized."""

    def __init__(self, serialize: Any) -> None:
        self._serialize = serialize
        self._attempts = 0
        self._bytes = 0

    def find_in(self, state: Collection[tuple[str, Any]]) -> str | None:
        """Return the path of the first value that cannot be serialized, in pairs of channel and value; None if the search finds none."""
        return next((path for channel, value in state if (path := self.find(value, key_names((str(channel),))[0])) is not None), None)

    def find(self, value: Any, path: str) -> str | None:
        """Return the path of the value, or of what contains it if the search ends early; None if this one can be serialized."""
        self._attempts += 1
        if self._attempts > _MAX_ATTEMPTS or self._bytes > _MAX_SEARCHED or self._is_serializable(value):
            return None
        for step, child in _children(value):
            if (inner := self.find(child, path + step)) is not None:
                return inner
        return path

    def _is_serializable(self, value: Any) -> bool:
        try:
            self._bytes += len(self._serialize(value)[1])
        except Exception as error:
            raise_host_exception(error)
            return False
        return True


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in a container or object, with the step that leads to them."""
    if isinstance(value, dict):
        yield from ((f".{key_names((str(key),))[0]}", child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif dataclasses.is_dataclass(value) or hasattr(value, "model_dump"):
        yield from ((f".{name}", child) for name, child in _fields(value))


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Return names and values of the fields of a dataclass, which may have slots, or of a Pydantic model."""
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return list(vars(value).items())
