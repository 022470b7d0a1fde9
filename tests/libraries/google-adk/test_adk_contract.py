"""The instrumentor of Google's ADK passes the contract of all instrumentors, for every session service of the ADK."""

from importlib.metadata import version

import pytest

from ckpt_observe.instrument.agent_sessions import GoogleADKInstrumentor
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries

USE = """
import asyncio
from google.adk.events.event import Event
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
async def use():
    for service in (InMemorySessionService(), SqliteSessionService(":memory:")):
        session = await service.create_session(app_name="app", user_id="user", session_id="a")
        await service.append_event(session, Event(author="user"))
        assert len((await service.get_session(app_name="app", user_id="user", session_id="a")).events) == 1
        if hasattr(service, "close"):
            await service.close()
asyncio.run(use())
"""


class TestGoogleADK(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.agent_sessions:GoogleADKInstrumentor"
    use = USE
    members = (
        "google.adk.sessions.in_memory_session_service",
        "google.adk.sessions.sqlite_session_service",
        "google.adk.sessions.database_session_service",
        "google.adk.sessions.vertex_ai_session_service",
    )


def test_installed_version_is_supported():
    """The tests run with the version that the instrumentor names."""
    assert version("google-adk") == "2.13.0"
    assert GoogleADKInstrumentor.supported == "google-adk>=2.13,<3"
