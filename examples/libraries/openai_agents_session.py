"""A conversation with an agent of the OpenAI Agents SDK, kept in SQLite. Run `python examples/libraries/openai_agents_session.py`.

The model is a stand-in, so that the example needs no key and no network.
"""

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, set_tracing_disabled
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

import ckpt_observe.auto  # noqa: F401


class EchoModel(Model):
    """Answers with the number of items that it was given."""

    async def get_response(self, system_instructions, input, *args, **kwargs):
        text = ResponseOutputText(type="output_text", text=f"I know {len(input)} items.", annotations=[])
        message = ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def main(database: Path) -> None:
    agent = Agent("Assistant", model=EchoModel())
    session = SQLiteSession("conversation-1", database)
    for question in ("Who are you?", "What do you know?"):
        result = await Runner.run(agent, question, session=session)
        print(result.final_output)
    session.close()


set_tracing_disabled(True)
with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(Path(directory) / "sessions.db"))
print("To see what was loaded and appended: ckpt-observe traces")
