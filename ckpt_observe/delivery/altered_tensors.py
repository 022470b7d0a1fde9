"""Compares the tensors of a load with those of the save that wrote its checkpoint, and names the ones that differ.

The summary of a save is beside the index of saves, because most loads happen in another process. A file that a program without observation
has written since then differs, too: it is not what was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ckpt_observe.delivery.save_details import Detail, DetailKey, SaveDetails
from ckpt_observe.delivery.save_index import save_key
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.tensor_summary import TensorSummary

_READ: Final = ("load", "restore")
_PARTS: Final = "parts"


class AlteredTensors:
    """Adds the differences to the records of loads. Called from any thread."""

    def __init__(self, details: SaveDetails) -> None:
        self._details = details

    def annotate(self, lines: list[Any], attributes: Mapping[str, Any]) -> bool:
        """Remove the summary from a record, and remember it, or compare it. Return whether the lines were changed."""
        parts = [line[3] for line in lines if line[0] == events.TENSORS]
        if not parts:
            return False
        lines[:] = [line for line in lines if line[0] != events.TENSORS]
        begin, end, checkpoint = lines[0], lines[-1], attributes.get(names.ID)
        if not isinstance(checkpoint, str) or (attributes.get(names.OUTCOME) or "ok") != "ok":
            return True
        key = ("tensors", save_key(attributes, checkpoint).hex())
        if begin[4] == "save":
            self._details.put(key, Detail(end[2], {_PARTS: parts}))
        elif begin[4] in _READ:
            end[3] = {**(end[3] or {}), **self._find_differences(key, begin[2], parts)}
        return True

    def _find_differences(self, key: DetailKey, start: int, parts: list[str]) -> dict[str, Any]:
        """Return the attributes of a load that started at `start`. Nothing if its save is not known, or was overwritten since then."""
        detail = self._details.find(key)
        if detail is None or detail.unix_nano > start:
            return {}
        saved, loaded = TensorSummary.unpack(detail.content.get(_PARTS, ())), TensorSummary.unpack(parts)
        return {names.COMPARED: True, **saved.compare(loaded)} if saved is not None and loaded is not None else {}
