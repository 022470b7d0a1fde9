"""Codecs, by name. `none` is the absence of one."""

from ckpt_observe.core.codecs.base import Codec, codecs, compressed

__all__ = ["Codec", "codecs", "compressed"]
