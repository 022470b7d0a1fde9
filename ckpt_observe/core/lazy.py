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

    Of one that lies in a checkpoint which is neither compressed nor encrypted only its own bytes are read, and checked against its own
    digest; for any other, and where the header lists no keys, the whole checkpoint is read.
    """

    def __init__(self, fetcher: Fetcher, info: CheckpointInfo) -> None:
        self._fetcher = fetcher
        self.info = info

    def __iter__(self) -> Iterator[str]:
        return iter(self.info.keys or self._unlisted())

    def __len__(self) -> int:
        return len(self.info.keys or self._unlisted())

    def __getitem__(self, key: str) -> Any:
        if not self.info.keys:
            return self._unlisted()[key]
        at = self.info.keys[key]
        serializer = self._fetcher.pipeline.serializer_of(self.info)
        holder = self._fetcher.store.info(self.info.task, at.base) if at.base else self.info
        if holder.codec != "none" or holder.cipher or not isinstance(serializer, KeyedSerializer):
            return self._fetcher.one(self.info.task, self.info.id).state[key]
        return self._value(serializer, holder, key, at)

    def _unlisted(self) -> Mapping[Any, Any]:
        """A mapping whose keys are too many for a header, or not all strings; what is no mapping has none."""
        state = self._fetcher.one(self.info.task, self.info.id).state
        return state if isinstance(state, Mapping) else {}

    def _value(self, serializer: KeyedSerializer, holder: CheckpointInfo, key: str, at: KeyInfo) -> Any:
        held = {name: there for name, there in holder.keys.items() if not there.base}
        start = holder.header_size + serializer.offsets(held)[key]
        data = self._fetcher.store.get_range(holder.task, holder.id, start, at.size)
        if digests.of_key(data) != at.digest:
            raise IntegrityError(f"{key!r} of checkpoint {self.info.id!r} of {self.info.task!r} is damaged")
        return serializer.loads(data)
