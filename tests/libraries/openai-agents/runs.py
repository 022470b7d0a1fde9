"""A session without a base class, handed to the runner: `runs.py HOW`. Prints what the session contains."""

from __future__ import annotations

import asyncio
import json
import sys

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseOutputMessage, ResponseOutputText


class ListSession:
    """Implements the protocol `Session`, as third parties should."""

    session_settings = None

    def __init__(self, session_id):
        self.session_id, self.items = session_id, []

    async def get_items(self, limit=None):
        return self.items if limit is None else self.items[-limit:]

    async def add_items(self, items):
        self.items += items

    async def pop_item(self):
        return self.items.pop() if self.items else None

    async def clear_session(self):
        self.items.clear()


class FixedModel(Model):
    async def get_response(self, *args, **kwargs):
        text = ResponseOutputText(type="output_text", text="fine", annotations=[])
        message = ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def main(how):
    set_tracing_disabled(True)
    agent, session = Agent("Assistant", model=FixedModel()), ListSession("listed")
    if how == "sync":
        Runner.run_sync(agent, "How are you?", session=session)
    else:
        asyncio.run(Runner.run(agent, "How are you?", session=session))
    print(json.dumps(session.items))


if __name__ == "__main__":
    main(*sys.argv[1:])
