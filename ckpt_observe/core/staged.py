"""A state frozen at one moment."""

from __future__ import annotations

from typing import NamedTuple

from ckpt_observe.core.serializers import Document


class Staged(NamedTuple):
    """A state that was serialized and can be saved later: changes made to the live one since do not reach it."""

    document: Document
    type: str
    depth: int
    items: int
