"""Instrument your own checkpoint code. Run `python examples/own_code.py`, then `ckpt-observe traces`."""

import json
import tempfile
import zlib
from pathlib import Path

import ckpt_observe

watch = ckpt_observe.observe(service="own-code")


@ckpt_observe.phase("serialize")
def serialize(state: dict) -> bytes:
    return json.dumps(state).encode()


def save(path: Path, state: dict, step: int) -> None:
    with ckpt_observe.checkpoint("save", id=path.name, step=step) as operation:
        data = serialize(state)
        with operation.phase("compress") as phase:
            packed = zlib.compress(data)
            phase.set({"checkpoint.phase.bytes_in": len(data), "checkpoint.phase.bytes_out": len(packed)})
        with operation.phase("write"):
            path.write_bytes(packed)
        operation.set({"checkpoint.size.serialized": len(data), "checkpoint.size.stored": len(packed)})


with tempfile.TemporaryDirectory() as directory, ckpt_observe.task("train", id="run-42"):
    for step in range(3):
        save(Path(directory) / f"step-{step}.ckpt", {"step": step, "loss": [1 / (n + 1) for n in range(step * 100)]}, step)
watch.close()
