"""The instrumentor of LangGraph as the contract of all instrumentors can test it."""

from __future__ import annotations

from ckpt_observe.instrument.langgraph import CIPHERS, LangGraphInstrumentor


class WithoutCiphers(LangGraphInstrumentor):
    """Without ciphers: LangGraph defines the class of its own one in a function, so none is there before a saver encrypts."""

    def families(self):
        return tuple(family for family in super().families() if family is not CIPHERS)
