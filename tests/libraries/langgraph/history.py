"""Saves many checkpoints and reads them as one history: `history.py SAVER_URL CHECKPOINTS`. Prints how often the serializer was called."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing

import savers
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


class CountingSerializer(JsonPlusSerializer):
    """Counts what the library asks for: the oracle of the summed phases."""

    loads = 0

    def loads_typed(self, data):
        CountingSerializer.loads += 1
        return super().loads_typed(data)


CONFIG = {"configurable": {"thread_id": "history", "checkpoint_ns": ""}}
THREAD = {"configurable": {"thread_id": "history"}}


def put_arguments(config, step):
    values = {"step": [step], "text": ["x" * 100]}
    versions = dict.fromkeys(values, f"{step:032}")
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    return config, checkpoint, {"step": step, "source": "loop"}, versions


def run(url, checkpoints):
    config = CONFIG
    with savers.open_saver(url) as saver:
        saver.serde = CountingSerializer()
        for step in range(checkpoints):
            config = saver.put(*put_arguments(config, step))
        CountingSerializer.loads = 0
        items = sum(1 for _ in saver.list(THREAD))
        whole = CountingSerializer.loads
        some = [item for _, item in zip(range(3), saver.list(THREAD), strict=False)]
    return {"items": items, "loads": whole, "some": len(some)}


async def run_async(url, checkpoints):
    config = CONFIG
    async with savers.open_async_saver(url) as saver:
        saver.serde = CountingSerializer()
        for step in range(checkpoints):
            config = await saver.aput(*put_arguments(config, step))
        CountingSerializer.loads = 0
        items = len([item async for item in saver.alist(THREAD)])
        whole, some = CountingSerializer.loads, 0
        async with aclosing(saver.alist(THREAD)) as listing:
            async for _ in listing:
                some += 1
                if some == 3:
                    break
    return {"items": items, "loads": whole, "some": some}


def main(url, checkpoints):
    is_async = url.partition(":")[0] in savers.ASYNC
    print(json.dumps(asyncio.run(run_async(url, checkpoints)) if is_async else run(url, checkpoints)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
