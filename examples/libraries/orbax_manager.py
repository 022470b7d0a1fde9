"""Observe Orbax's CheckpointManager. Run `python examples/libraries/orbax_manager.py`, then `ckpt-observe traces`."""

import tempfile

import ckpt_observe

watch = ckpt_observe.observe(service="orbax-manager")

import jax.numpy as jnp  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402

options = ocp.CheckpointManagerOptions(save_interval_steps=5)
state = {"weights": jnp.zeros(1000), "bias": jnp.zeros(10)}

with tempfile.TemporaryDirectory() as directory, ckpt_observe.task("train", id="run-42"):
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in range(10):
            state = {name: values + 1 for name, values in state.items()}
            manager.save(step, args=ocp.args.StandardSave(state))  # saves steps 0 and 5, and skips the others
    with ocp.CheckpointManager(directory, options=options) as manager:
        restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
        assert restored["bias"][0] == 6
watch.close()
