"""Saves many checkpoints and reads them as one history: `history.py SAVER_URL CHECKPOINTS`. Prints how often the serializer was called."""

from __future__ import annotations

import json
import sys

import savers
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


class CountingSerializer(JsonPlusSerializer):
    """Counts what the library asks for: the oracle of the summed phases."""

    loads = 0

    def loads_typed(self, data):
        CountingSerializer.loads += 1
        return super().loads_typed(data)


def main(url, checkpoints):
    config = {"configurable": {"thread_id": "history", "checkpoint_ns": ""}}
    with savers.open_saver(url) as saver:
        saver.serde = CountingSerializer()
        for step in range(checkpoints):
            values = {"step": [step], "text": ["x" * 100]}
            versions = dict.fromkeys(values, f"{step:032}")
            checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
            config = saver.put(config, checkpoint, {"step": step, "source": "loop"}, versions)
        CountingSerializer.loads = 0
        items = sum(1 for _ in saver.list({"configurable": {"thread_id": "history"}}))
        whole = CountingSerializer.loads
        some = [item for _, item in zip(range(3), saver.list({"configurable": {"thread_id": "history"}}), strict=False)]
    print(json.dumps({"items": items, "loads": whole, "some": len(some)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
