"""Reads single keys of a checkpoint on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ckpt_observe.core import steps
from ckpt_observe.core.loading.fetch import DAMAGE_ADVICE, Fetcher
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.serializers import KeyedSerializer
from ckpt_observe.errors import IntegrityError

_NEEDS_WHOLE: Final = object()


class _Holder(NamedTuple):
    """A checkpoint that holds values, and their offsets in its payload."""

    info: CheckpointInfo
    offsets: dict[str, int]


class LazyState(Mapping[str, Any]):
    """A mapping of the top-level keys of a checkpoint. Values are not cached: every access reads again.

    If the checkpoint is neither compressed nor encrypted, only the bytes of the key are read and checked against its digest. Otherwise, or
    if the header does not list the keys, the whole checkpoint is read.
    """

    def __init__(self, fetcher: Fetcher, info: CheckpointInfo) -> None:
        self._fetcher = fetcher
        self.info = info
        self._holders: dict[str, _Holder] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.info.keys or self._whole())

    def __len__(self) -> int:
        return len(self.info.keys or self._whole())

    def __contains__(self, key: object) -> bool:
        return key in (self.info.keys or self._whole())

    def __getitem__(self, key: str) -> Any:
        if self.info.keys and key not in self.info.keys:
            raise KeyError(key)  # `get()` relies on it; raised here, so that instrumentation does not record a failed load
        return self.get_many((key,))[key]

    def get_many(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the values of several keys. If they are half of the bytes or more, or one needs it, the whole checkpoint is read once."""
        entries = self.info.keys
        if len(keys) == 1 or 2 * sum(entries[key].size for key in keys if key in entries) < sum(entry.size for entry in entries.values()):
            values = {key: self._read_key(key) for key in keys}
            if all(value is not _NEEDS_WHOLE for value in values.values()):
                return values
        whole = self._whole()
        for key in keys:
            if key in entries and key not in whole:
                text = f"the header of checkpoint {self.info.id!r} lists the key {key!r}, but its state has no such key; {DAMAGE_ADVICE}"
                raise IntegrityError(text, code="integrity.malformed")
        return {key: whole[key] for key in keys}

    def _read_key(self, key: str) -> Any:
        """Read one value without the rest; return _NEEDS_WHOLE if only the whole checkpoint can be read."""
        if not self.info.keys:
            return _NEEDS_WHOLE
        entry = self.info.keys[key]
        serializer = self._fetcher.pipeline.serializer_of(self.info)
        if not isinstance(serializer, KeyedSerializer):
            return _NEEDS_WHOLE
        holder, offsets = self._holder(serializer, entry.base)
        if holder.codec != "none" or holder.cipher or offsets.get(key, holder.payload_size) + entry.size > holder.payload_size:
            return _NEEDS_WHOLE
        data = self._fetcher.part(self.info, holder, offsets[key], entry.size)
        # If the digest does not match, loading the whole checkpoint reports the damage.
        return steps.deserialize(serializer, data) if steps.validate_key(entry.digest, data) else _NEEDS_WHOLE

    def _holder(self, serializer: KeyedSerializer, base: str) -> _Holder:
        if base not in self._holders:
            info = self._fetcher.base_info(self.info, base) if base else self.info
            offsets = serializer.offsets({name: entry for name, entry in info.keys.items() if not entry.base})
            self._holders[base] = _Holder(info, offsets)
        return self._holders[base]

    def _whole(self) -> Mapping[Any, Any]:
        """Read the whole state; return an empty mapping if it is not a mapping."""
        state = self._fetcher.load(self.info.task, self.info.id).state
        return state if isinstance(state, Mapping) else {}
