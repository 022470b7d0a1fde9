"""The instrumentor of the OpenAI Agents SDK passes the contract of all instrumentors, for every session of the SDK."""

from importlib.metadata import version

import pytest

from ckpt_observe.instrument.agent_sessions import OpenAIAgentsInstrumentor
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries

USE = """
import asyncio
from agents import SQLiteSession
from agents.extensions.memory import AsyncSQLiteSession, EncryptedSession
async def use():
    item = {"role": "user", "content": "x"}
    asynchronous = AsyncSQLiteSession("b")
    for session in (SQLiteSession("a"), asynchronous, EncryptedSession("c", SQLiteSession("c"), "key" * 16)):
        await session.add_items([item])
        assert await session.get_items() == [item]
        assert await session.pop_item() == item
        await session.clear_session()
    await asynchronous.close()
asyncio.run(use())
"""


class TestOpenAIAgents(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.agent_sessions:OpenAIAgentsInstrumentor"
    use = USE
    members = (
        "agents.memory.sqlite_session",
        "agents.memory.openai_conversations_session",
        "agents.memory.openai_responses_compaction_session",
        "agents.extensions.memory.advanced_sqlite_session",
        "agents.extensions.memory.async_sqlite_session",
        "agents.extensions.memory.encrypt_session",
        "agents.extensions.memory.sqlalchemy_session",
    )


def test_installed_version_is_supported():
    """The tests run with the version that the instrumentor names."""
    assert version("openai-agents") == "0.24.0"
    assert OpenAIAgentsInstrumentor.supported == "openai-agents>=0.24,<0.25"
