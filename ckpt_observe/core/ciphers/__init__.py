"""Ciphers. Without one, payloads are stored readable."""

from ckpt_observe.core.ciphers.base import Cipher

__all__ = ["Cipher"]
