"""Formats of a state: JSON, MessagePack, pickle and arrays."""

from ckpt_observe.core.serializers.serializer import Document, KeyedSerializer, Serializer

__all__ = ["Document", "KeyedSerializer", "Serializer"]
