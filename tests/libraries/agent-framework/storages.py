"""Storages of every kind, used by workflows drawn from a seed: `storages.py SEED`. Prints the outputs and what is stored, by kind.

The last kinds are classes that the program defines itself. `CheckpointStorage` is a protocol, so they inherit from nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import warnings
from pathlib import Path

from agent_framework import (
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    step,
    workflow,
)

SECRET = "what the user said"


class Step(Executor):
    @handler
    async def run(self, text: str, context: WorkflowContext[str]) -> None:
        context.set_state(self.id, SECRET)
        await context.send_message(text + self.id)


class Last(Executor):
    @handler
    async def run(self, text: str, context: WorkflowContext[None, str]) -> None:
        await context.yield_output(text)


def subclass(path):
    class LocalStorage(FileCheckpointStorage):
        async def save(self, checkpoint):
            return await super().save(checkpoint)

        async def load(self, *args, **kwargs):
            return await super().load(*args, **kwargs)

    return LocalStorage(path)


def duck(path):
    class DuckStorage:
        """Hands everything on to files."""

        def __init__(self):
            self.inner = FileCheckpointStorage(path)

        async def save(self, checkpoint):
            return await self.inner.save(checkpoint)

        def load(self, checkpoint_id):
            return self.inner.load(checkpoint_id)

        async def list_checkpoints(self, *, workflow_name):
            return await self.inner.list_checkpoints(workflow_name=workflow_name)

        async def delete(self, checkpoint_id):
            return await self.inner.delete(checkpoint_id)

        async def get_latest(self, *, workflow_name):
            return await self.inner.get_latest(workflow_name=workflow_name)

        async def list_checkpoint_ids(self, *, workflow_name):
            return await self.inner.list_checkpoint_ids(workflow_name=workflow_name)

    return DuckStorage()


KINDS = {
    "memory": lambda path: InMemoryCheckpointStorage(),
    "file": FileCheckpointStorage,
    "subclass": subclass,
    "duck": duck,
    "runtime": duck,
    "functional": duck,
}


def build(kind, storage, length):
    steps = [Step(id=f"step{number}") for number in range(length)]
    steps.append(Last(id="last"))
    builder = WorkflowBuilder(name=kind, start_executor=steps[0], checkpoint_storage=None if kind == "runtime" else storage)
    for source, target in itertools.pairwise(steps):
        builder.add_edge(source, target)
    return builder.build()


async def run_graph(kind, storage, choice):
    """Run a workflow, and resume another one from one of its checkpoints."""
    length = choice.randrange(1, 4)
    options = {"checkpoint_storage": storage} if kind == "runtime" else {}
    outputs = (await build(kind, storage, length).run("hello ", **options)).get_outputs()
    checkpoints = sorted(await storage.list_checkpoints(workflow_name=kind), key=lambda checkpoint: checkpoint.timestamp)
    resumed = choice.choice(checkpoints[:-1]).checkpoint_id
    return [outputs, (await build(kind, storage, length).run(checkpoint_id=resumed, **options)).get_outputs()], resumed


async def run_function(kind, storage, choice):
    @step
    async def shout(text: str) -> str:
        return text.upper()

    @workflow(name=kind)
    async def functional(text: str) -> str:
        return await shout(text)

    outputs = (await functional.build(checkpoint_storage=storage).run("hello")).get_outputs()
    latest = await storage.get_latest(workflow_name=kind)
    resumed = await functional.build().run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage)
    return [outputs, resumed.get_outputs()], latest.checkpoint_id


async def run(kind, seed):
    choice = random.Random(f"{kind} {seed}")
    storage = KINDS[kind](kind)
    outputs, resumed = await (run_function if kind == "functional" else run_graph)(kind, storage, choice)
    stored = read_store(kind, storage)
    deleted = await storage.delete(resumed), await storage.delete(f"{kind}-none")
    return {"outputs": outputs, "resumed": resumed, "stored": stored, "deleted": deleted}


def read_store(kind, storage):
    """Return id, previous id, iteration and size of the stored checkpoints."""
    if kind == "memory":
        checkpoints = storage._checkpoints.values()
        return [[each.checkpoint_id, each.previous_checkpoint_id, each.iteration_count, None] for each in checkpoints]
    rows = []
    for path in Path(kind).glob("*.json"):
        content = json.loads(path.read_bytes())
        rows.append([content["checkpoint_id"], content["previous_checkpoint_id"], content["iteration_count"], path.stat().st_size])
    return rows


async def main(seed):
    print(json.dumps({kind: await run(kind, seed) for kind in KINDS}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # functional workflows are experimental
    asyncio.run(main(*sys.argv[1:]))
