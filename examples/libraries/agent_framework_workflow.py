"""A workflow of Microsoft's Agent Framework that is resumed from a checkpoint.

Run `python examples/libraries/agent_framework_workflow.py`.
"""

import asyncio
import tempfile

from agent_framework import Executor, FileCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler

import ckpt_observe.auto  # noqa: F401


class Shout(Executor):
    @handler
    async def shout(self, text: str, context: WorkflowContext[str]) -> None:
        await context.send_message(text.upper())


class Answer(Executor):
    @handler
    async def answer(self, text: str, context: WorkflowContext[None, str]) -> None:
        await context.yield_output(f"{text}!")


def build(storage: FileCheckpointStorage) -> Workflow:
    shout, answer = Shout(id="shout"), Answer(id="answer")
    return WorkflowBuilder(name="shouting", start_executor=shout, checkpoint_storage=storage).add_edge(shout, answer).build()


async def main(directory: str) -> None:
    storage = FileCheckpointStorage(directory)
    print(*(await build(storage).run("hello")).get_outputs())
    first = min(await storage.list_checkpoints(workflow_name="shouting"), key=lambda checkpoint: checkpoint.timestamp)
    print(*(await build(storage).run(checkpoint_id=first.checkpoint_id)).get_outputs(), "(resumed)")


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))
print("To see the saves, and the load that is linked to one of them: ckpt-observe traces")
