"""A state read key by key, when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ckpt_observe.core.format import digests
from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.serializers import KeyedSerializer

_NOT_ALONE: Final = object()


class _Holder(NamedTuple):
    """A checkpoint that values are in, and where."""

    info: CheckpointInfo
    offsets: dict[str, int]


class LazyState(Mapping[str, Any]):
    """The top-level keys of a checkpoint. No value is kept: asking twice reads twice.

    Of one that lies in a checkpoint which is neither compressed nor encrypted only its own bytes are read, and checked against its
    own digest; for any other, and where the header lists no keys, the whole checkpoint is read.
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
            raise KeyError(key)  # before it is a load that fails: `get` asks so
        return self.some((key,))[key]

    def some(self, keys: Sequence[str]) -> dict[str, Any]:
        """The values of several keys. Where they are most of the state, or some has to be read whole, it is read once for all."""
        known = self.info.keys
        if len(keys) == 1 or 2 * sum(known[key].size for key in keys if key in known) < sum(key.size for key in known.values()):
            alone = {key: self._alone(key) for key in keys}
            if all(value is not _NOT_ALONE for value in alone.values()):
                return alone
        whole = self._whole()
        return {key: whole[key] for key in keys}

    def _alone(self, key: str) -> Any:
        """The value, read without the rest, where that can be."""
        if not self.info.keys:
            return _NOT_ALONE
        at = self.info.keys[key]
        serializer = self._fetcher.pipeline.serializer_of(self.info)
        if not isinstance(serializer, KeyedSerializer):
            return _NOT_ALONE
        holder, offsets = self._holder(serializer, at.base)
        if holder.codec != "none" or holder.cipher or offsets.get(key, holder.payload_size) + at.size > holder.payload_size:
            return _NOT_ALONE
        data = self._fetcher.part(self.info, holder, offsets[key], at.size)
        return serializer.loads(data) if digests.matches_key(at.digest, data) else _NOT_ALONE  # the whole one says what is damaged

    def _holder(self, serializer: KeyedSerializer, base: str) -> _Holder:
        if base not in self._holders:
            info = self._fetcher.base_info(self.info, base) if base else self.info
            offsets = serializer.offsets({name: there for name, there in info.keys.items() if not there.base})
            self._holders[base] = _Holder(info, offsets)
        return self._holders[base]

    def _whole(self) -> Mapping[Any, Any]:
        """The whole state, read now; what is no mapping has no keys."""
        state = self._fetcher.one(self.info.task, self.info.id).state
        return state if isinstance(state, Mapping) else {}
