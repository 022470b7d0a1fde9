"""Formats of a state, by name."""

from ckpt_observe.core.serializers.base import Document, KeyedSerializer, Serializer, serializers

__all__ = ["Document", "KeyedSerializer", "Serializer", "serializers"]
