"""An agent of Google's ADK whose session is kept in SQLite.

Run `python examples/libraries/google_adk_session.py`. It needs no key and no network.
"""

import asyncio
import tempfile
from pathlib import Path

from google.adk.agents import BaseAgent
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import ckpt_observe.auto  # noqa: F401


class CountingAgent(BaseAgent):
    """Answers with the number of events in its session."""

    async def _run_async_impl(self, context):
        text = f"My session has {len(context.session.events)} events."
        yield Event(
            author=self.name, invocation_id=context.invocation_id, content=types.Content(role="model", parts=[types.Part(text=text)])
        )


async def main(database: Path) -> None:
    service = SqliteSessionService(str(database))
    runner = Runner(app_name="counter", agent=CountingAgent(name="counter"), session_service=service)
    await service.create_session(app_name="counter", user_id="user-1", session_id="session-1")
    for question in ("First?", "Second?"):
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for event in runner.run_async(user_id="user-1", session_id="session-1", new_message=message):
            print(event.content.parts[0].text)


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(Path(directory) / "sessions.db"))
print("To see what was loaded and appended: ckpt-observe traces")
