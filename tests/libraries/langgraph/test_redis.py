"""The saver of Redis on a server without its modules, RedisJSON and RediSearch: Debian has no RedisJSON, and a RediSearch without JSON.

So each operation that stores or searches fails. What succeeds on such a server is tested with the other savers, by the same base class.
"""

from __future__ import annotations

import pytest
import stores
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.redis import RedisSaver

from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
CONTENT = "what the state contains"
CONFIG = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}
MISSING_MODULE = ("configuration.unsupported", False)


@pytest.fixture
def saver(recording, tmp_path):
    """An observed saver, with a server that does not know its commands."""
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    with stores.redis(tmp_path) as (url, _), RedisSaver.from_conn_string(url) as saver:
        yield saver
    instrumentor.uninstrument()


def test_server_without_modules(recording, saver):
    """Each operation is one span that says what is wrong, with its IDs and size, and without the command that Redis quotes."""
    checkpoint = {**empty_checkpoint(), "channel_values": {"text": CONTENT}, "channel_versions": {"text": "1"}}
    with pytest.raises(Exception, match=r"JSON\.SET"):
        saver.put(CONFIG, checkpoint, {"source": "loop", "step": 1}, {"text": "1"})
    parent = {"configurable": {**CONFIG["configurable"], "checkpoint_id": checkpoint["id"]}}
    with pytest.raises(Exception, match=r"JSON\.SET"):
        saver.put_writes(parent, [("text", CONTENT)], "task")
    assert saver.get_tuple(CONFIG) is None
    with pytest.raises(Exception, match=r"FT\.SEARCH"):
        saver.delete_thread("thread-1")
    spans = [span for span in recording.spans() if names.OPERATION in span.attributes]
    assert [span.attributes[names.OPERATION] for span in spans] == ["save", "append", "load", "delete"]
    save, append, load, delete = (span.attributes for span in spans)
    for attributes in (save, append, load, delete):
        assert [attributes[name] for name in (names.STORE, names.SAVER, names.TASK_ID)] == ["redis", "RedisSaver", "thread-1"]
    for attributes in (save, append, delete):
        assert (attributes[names.ERROR_CODE], attributes[names.ERROR_RETRYABLE]) == MISSING_MODULE
    assert save[names.ID] == append[names.ID] == checkpoint["id"]
    assert min(save[names.SIZE_SERIALIZED], append[names.SIZE_SERIALIZED]) > len(CONTENT)
    assert load[names.EXISTS] is False
    messages = [event.attributes["exception.message"] for span in spans for event in span.events]
    assert messages == [
        "Failed to load data: Command # 1 of pipeline caused error: unknown command 'JSON.SET'",
        "unknown command 'JSON.SET'",
        "Error while searching: unknown command 'FT.SEARCH'",
    ]
