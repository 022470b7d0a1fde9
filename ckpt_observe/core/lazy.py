"""A state read key by key, when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckpt_observe.core import digests
from ckpt_observe.core.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo, KeyInfo
from ckpt_observe.core.serializers import KeyedSerializer
from ckpt_observe.errors import IntegrityError


class LazyState(Mapping[str, Any]):
    """The top-level keys of a checkpoint. Nothing is kept: asking twice reads twice.

    Of a checkpoint that is neither compressed nor encrypted only the bytes of that key are read, and checked against the
    key's own digest; of any other the whole is read.
    """

    def __init__(self, fetcher: Fetcher, info: CheckpointInfo) -> None:
        self._fetcher = fetcher
        self.info = info

    def __iter__(self) -> Iterator[str]:
        return iter(self.info.keys)

    def __len__(self) -> int:
        return len(self.info.keys)

    def __getitem__(self, key: str) -> Any:
        at = self.info.keys[key]
        serializer = self._fetcher.pipeline.serializer_of(self.info)
        if self.info.codec != "none" or self.info.cipher or not isinstance(serializer, KeyedSerializer):
            return self._fetcher.one(self.info.task, self.info.id).state[key]
        holder = self._fetcher.store.info(self.info.task, at.base) if at.base else self.info
        return self._value(serializer, holder, key, at)

    def _value(self, serializer: KeyedSerializer, holder: CheckpointInfo, key: str, at: KeyInfo) -> Any:
        held = {name: there for name, there in holder.keys.items() if not there.base}
        start = holder.header_size + serializer.offsets(held)[key]
        data = self._fetcher.store.get_range(holder.task, holder.id, start, at.size)
        if digests.of_key(data) != at.digest:
            raise IntegrityError(f"{key!r} of checkpoint {self.info.id!r} of {self.info.task!r} is damaged")
        return serializer.loads(data)
