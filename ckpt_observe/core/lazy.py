"""A state read key by key, when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ckpt_observe.core import digests
from ckpt_observe.core.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo, KeyInfo
from ckpt_observe.core.serializers import KeyedSerializer
from ckpt_observe.errors import IntegrityError

_NOT_ALONE: Final = object()


class LazyState(Mapping[str, Any]):
    """The top-level keys of a checkpoint. Nothing is kept: asking twice reads twice.

    Of one that lies in a checkpoint which is neither compressed nor encrypted, in JSON or msgpack, only its own bytes are read, and
    checked against its own digest; for any other, and where the header lists no keys, the whole checkpoint is read.
    """

    def __init__(self, fetcher: Fetcher, info: CheckpointInfo) -> None:
        self._fetcher = fetcher
        self.info = info

    def __iter__(self) -> Iterator[str]:
        return iter(self.info.keys or self._whole())

    def __len__(self) -> int:
        return len(self.info.keys or self._whole())

    def __contains__(self, key: object) -> bool:
        return key in (self.info.keys or self._whole())

    def __getitem__(self, key: str) -> Any:
        return self.some((key,))[key]

    def some(self, keys: Sequence[str]) -> dict[str, Any]:
        """The values of several keys. What has to be read whole is read once for all of them."""
        whole: Mapping[Any, Any] | None = None
        found = {}
        for key in keys:
            value = self._alone(key)
            if value is _NOT_ALONE:
                whole = self._whole() if whole is None else whole
                value = whole[key]
            found[key] = value
        return found

    def _alone(self, key: str) -> Any:
        """The value, read without the rest, where that can be."""
        if not self.info.keys:
            return _NOT_ALONE
        at = self.info.keys[key]
        serializer = self._fetcher.pipeline.serializer_of(self.info)
        holder = self._fetcher.base_info(self.info, at.base) if at.base else self.info
        if holder.codec != "none" or holder.cipher or not isinstance(serializer, KeyedSerializer):
            return _NOT_ALONE
        return self._value(serializer, holder, key, at)

    def _whole(self) -> Mapping[Any, Any]:
        """The whole state, read now; what is no mapping has no keys."""
        state = self._fetcher.one(self.info.task, self.info.id).state
        return state if isinstance(state, Mapping) else {}

    def _value(self, serializer: KeyedSerializer, holder: CheckpointInfo, key: str, at: KeyInfo) -> Any:
        held = {name: there for name, there in holder.keys.items() if not there.base}
        offset = serializer.offsets(held).get(key, holder.payload_size)
        size = min(at.size, holder.payload_size - offset)  # whatever a header says, no more than there is
        data = self._fetcher.store.get_range(holder.task, holder.id, holder.header_size + offset, size)
        if digests.of_key(data) != at.digest:
            raise IntegrityError(f"{key!r} of checkpoint {self.info.id!r} of {self.info.task!r} is damaged")
        return serializer.loads(data)
