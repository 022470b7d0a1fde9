"""What the rows of sessions ask the objects of the host program, which may have any attribute."""

from __future__ import annotations

import msgspec

from ckpt_observe.instrument.session_calls import outermost_call
from ckpt_observe.semconv import attributes as names


class Everything:
    """Has every attribute, as mocks and fluent proxies do: itself."""

    def __init__(self):
        self.accesses = 0

    def __getattr__(self, name):
        self.accesses += 1
        if self.accesses > 1000:
            raise AttributeError(name)
        return self


def test_session_that_has_every_attribute():
    """The search for its store ends, and the store is a word and not the representation of an object: it is a label of metrics."""
    session = Everything()
    call = outermost_call("toy", "load", lambda _session, _arguments: {})
    shared = msgspec.json.decode(b"{%s}" % bytes(call.shared(session)).strip(b"{},"))
    assert session.accesses < 50
    assert shared[names.STORE] == "file"
