"""Checkpoints of LangGraph, whatever database they are in: decoding one, and adding up many."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from ckpt_observe.readers.contents import Entry, largest_first
from ckpt_observe.readers.encoded_values import DECODE_ERRORS, JSON, MAX_ITEMS, MSGPACK, Encoding, ValueBudget, describe

ENCODINGS: Final[Mapping[str, Encoding]] = {"msgpack": MSGPACK, "json": JSON}
"""By the column `type`. Others, such as encrypted ones and pickles, are not decoded."""
UNCLEAR: Final = "encrypted, pickled, damaged, larger than 512 MiB, or of more than 100,000 channels"
"""Why the channels of a checkpoint may not be shown."""
_UUID_EPOCH: Final = dt.datetime(1582, 10, 15, tzinfo=dt.UTC)


class _Checkpoint(msgspec.Struct):
    channel_values: msgspec.Raw = msgspec.Raw(b"")


class _Metadata(msgspec.Struct):
    step: int | None = None
    source: str = ""


class Channels(NamedTuple):
    """The values of a checkpoint."""

    values: dict[str, bytes]
    encoding: Encoding

    def entries(self, depth: int, budget: ValueBudget) -> tuple[Entry, ...]:
        """Return a channel per entry, with `depth` levels below it."""
        return largest_first(_channel_entry(self.encoding, name, value, depth, budget) for name, value in self.values.items())


class ThreadCheckpoint(NamedTuple):
    """A checkpoint of a thread."""

    thread: str
    namespace: str
    id: str
    parent: str | None
    size: int
    step: int | None
    source: str
    channels: Channels | None
    """None if they are not decoded."""

    @property
    def created(self) -> dt.datetime:
        """The time in its id, a UUID of version 6; 1582 if it is another id."""
        try:
            digits = uuid.UUID(self.id).hex
        except ValueError:
            digits = "0" * 32
        ticks = int(digits[:12] + digits[13:16], 16) if digits[12] == "6" else 0
        return _UUID_EPOCH + dt.timedelta(microseconds=ticks // 10)

    def details(self) -> dict[str, str | int]:
        """Return the facts for an Entry."""
        created = "" if self.created == _UUID_EPOCH else self.created.isoformat()
        optional = {"namespace": self.namespace, "created": created, "source": self.source, "parent": self.parent}
        details: dict[str, str | int] = {name: value for name, value in optional.items() if value}
        return details if self.step is None else {"step": self.step, **details}


def decode_channels(type_name: str | None, checkpoint: bytes | None) -> Channels | None:
    """Return the channels of a checkpoint; None if it is damaged, encrypted or in another encoding."""
    encoding = ENCODINGS.get(type_name or "msgpack")
    if encoding is None or checkpoint is None:
        return None
    try:
        encoded = bytes(encoding.decode(checkpoint, type=_Checkpoint).channel_values)
        if encoding.count(encoded) > MAX_ITEMS:
            return None
        values = encoding.decode(encoded, type=dict[str, msgspec.Raw]) if encoded else {}
    except DECODE_ERRORS:
        return None
    return Channels({name: bytes(value) for name, value in values.items()}, encoding)


def decode_metadata(metadata: bytes | str | None) -> tuple[int | None, str]:
    """Return step and source from the metadata of a checkpoint; None and an empty string if it is damaged or has none."""
    try:
        decoded = msgspec.json.decode(metadata or b"{}", type=_Metadata)
    except DECODE_ERRORS:
        return None, ""
    return decoded.step, decoded.source


def _channel_entry(encoding: Encoding, name: str, value: bytes, depth: int, budget: ValueBudget) -> Entry:
    digest = f"blake2b:{_digest(value).hex()}"
    try:
        return describe(encoding, name, value, depth, budget, digest=digest)
    except DECODE_ERRORS:
        return Entry(name=name, type="invalid", size=len(value), digest=digest)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


class ThreadTotals:
    """Adds up checkpoints by channel and by step. Those of a thread and namespace are added in order, in either direction."""

    def __init__(self) -> None:
        self.count = self.size = self.unclear_count = 0
        """`size`: bytes of all checkpoints that were added; `unclear_count`: how many of them were not decoded."""
        self.repeated_size = 0
        self.channels_size = 0
        self._channels: dict[str, _ChannelTotal] = {}
        self._steps: defaultdict[str, _StepTotal] = defaultdict(_StepTotal)
        self._neighbours: dict[tuple[str, str], dict[str, bytes]] = {}
        """Digests of the channels of the checkpoint that was added before, by thread and namespace."""

    def add(self, checkpoint: ThreadCheckpoint) -> None:
        """Add a checkpoint."""
        self.count += 1
        self.size += checkpoint.size
        step = self._steps[str(checkpoint.step)]
        step.count += 1
        step.size += checkpoint.size
        if checkpoint.channels is None:
            self.unclear_count += 1
            return
        key = checkpoint.thread, checkpoint.namespace
        neighbour = self._neighbours.get(key, {})
        digests = {name: _digest(value) for name, value in checkpoint.channels.values.items()}
        for name, value in checkpoint.channels.values.items():
            self._add_value(checkpoint.channels.encoding, name, value, is_repeated=neighbour.get(name) == digests[name])
        self._neighbours[key] = digests

    def _add_value(self, encoding: Encoding, name: str, value: bytes, *, is_repeated: bool) -> None:
        total = self._channels.get(name)
        if total is None:
            total = self._channels[name] = _ChannelTotal(_channel_entry(encoding, name, value, 0, ValueBudget()).type)
        size = len(value)
        total.count += 1
        total.size += size
        total.largest = max(total.largest, size)
        total.repeated += size if is_repeated else 0
        self.channels_size += size
        self.repeated_size += size if is_repeated else 0

    def channels(self) -> tuple[Entry, ...]:
        """Return a channel per entry. Its type is that of the value that was added first."""
        return largest_first(channel.entry(name) for name, channel in self._channels.items())

    def steps(self) -> tuple[Entry, ...]:
        """Return a step per entry."""
        return largest_first(Entry(name=name, type="step", size=step.size, items=step.count) for name, step in self._steps.items())


class _ChannelTotal:
    def __init__(self, type_name: str) -> None:
        self.type = type_name
        self.count = self.size = self.largest = self.repeated = 0

    def entry(self, name: str) -> Entry:
        details: dict[str, str | int] = {"values": self.count, "largest_size": self.largest, "repeated_size": self.repeated}
        return Entry(name=name, type=self.type, size=self.size, details=details)


class _StepTotal:
    count = size = 0
