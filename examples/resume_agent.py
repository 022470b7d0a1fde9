"""An agent that saves after every step and resumes after a restart. Run `python examples/resume_agent.py`."""

import tempfile

import ckpt_observe.auto
from ckpt_observe.core import Checkpointer


def run(checkpoints: str, steps: int) -> dict:
    checkpointer = Checkpointer(checkpoints, compression="zstd", keep_last=3)
    with ckpt_observe.task("agent", id="run-1"):
        state, first = {"conversation": []}, 0
        if checkpointer.list("run-1"):
            restored = checkpointer.restore("run-1")
            state, first = restored.state, restored.next_step or 0
        for step in range(first, first + steps):
            state["conversation"].append({"role": "agent", "text": f"thought {step}"})
            checkpointer.save("run-1", state, step=step)
    return state


with tempfile.TemporaryDirectory() as checkpoints:
    run(checkpoints, steps=2)
    state = run(checkpoints, steps=2)  # in practice, this is another process
    print(f"{len(state['conversation'])} messages. To see the trace of the resumed run: ckpt-observe traces --operation restore")
