"""Formats of a state, by name."""

from ckpt_observe.core.serializers.base import Document, Serializer, serializers

__all__ = ["Document", "Serializer", "serializers"]
