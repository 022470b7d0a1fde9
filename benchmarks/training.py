"""Measures what observation adds to saves of training libraries, and to their import.

`python -m benchmarks.training [saves|imports] [NAME...]` measures both, or only one, of all or some libraries.

Saves run alternately bare and observed in one process, to a file system in memory if there is one, so that the disk of the machine is not
what is measured. The result is what observation adds to the median CPU time of the process, which includes our threads, as a share of that
of the bare save. On a shared machine, elapsed time would measure the neighbours.
Imports run in processes of their own. Observed ones import `ckpt_observe.auto` and wrapt first, and that is not counted: wrapt is imported
once per process, whatever is observed. A library that is not installed is skipped.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckpt_observe
from benchmarks.saturation import DiscardingExporter
from ckpt_observe import exporter_selection

MB, GB = 1 << 20, 1 << 30
SHARED_MEMORY = Path("/dev/shm")
SECONDS = 10.0
"""How long one kind of save is measured, but at least MIN_SAVES and at most MAX_SAVES times."""
MIN_SAVES, MAX_SAVES = 5, 200
BUDGETS = {MB: 0.5, GB: 0.05}
"""What observation may add to a save of a size, as a share of the bare save."""


def torch_state(size: int) -> dict[str, Any]:
    """Return a state of 16 tensors."""
    import torch

    return {f"layer-{number}": torch.ones(size // 64) for number in range(16)}


def save_torch(path: Path, size: int) -> Callable[[], object]:
    import torch

    state = torch_state(size)
    return lambda: torch.save(state, path)


def save_safetensors(path: Path, size: int) -> Callable[[], object]:
    import safetensors.torch

    state = torch_state(size)
    return lambda: safetensors.torch.save_file(state, path)


def save_dcp(path: Path, size: int) -> Callable[[], object]:
    import torch.distributed.checkpoint as dcp

    state = torch_state(size)
    return lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(path, overwrite=True), no_dist=True)


def save_orbax(path: Path, size: int) -> Callable[[], object]:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    state = {f"layer-{number}": jnp.ones(size // 64) for number in range(16)}
    checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    return lambda: checkpointer.save(path, args=ocp.args.StandardSave(state), force=True)


SAVES: dict[str, tuple[Callable[[Path, int], Callable[[], object]], int]] = {
    "torch-1MB": (save_torch, MB),
    "torch-1GB": (save_torch, GB),
    "safetensors-1MB": (save_safetensors, MB),
    "safetensors-1GB": (save_safetensors, GB),
    "dcp-1MB": (save_dcp, MB),
    "dcp-1GB": (save_dcp, GB),
    "orbax-1MB": (save_orbax, MB),
}
IMPORTS = {
    "torch": "torch",
    "dcp": "torch.distributed.checkpoint",
    "safetensors": "safetensors.torch",
    "transformers": "transformers.trainer",
    "accelerate": "accelerate",
    "lightning": "lightning.pytorch",
    "orbax": "orbax.checkpoint",
    "keras": "keras",
}
IMPORT_RUNS = 3


def cpu_milliseconds(call: Callable[[], object]) -> float:
    start = time.process_time_ns()
    call()
    return (time.process_time_ns() - start) / 1e6


def measure_save(save: Callable[[], object], instrumentors: list[Any]) -> tuple[list[float], list[float]]:
    """Return the milliseconds of bare and of observed saves."""
    bare, observed = [], []
    deadline = time.monotonic() + SECONDS
    while len(bare) < MIN_SAVES or (len(bare) < MAX_SAVES and time.monotonic() < deadline):
        for instrumentor in instrumentors:
            instrumentor.uninstrument()
        save()  # what the interpreter and the library cached is dropped when a function is patched
        bare.append(cpu_milliseconds(save))
        for instrumentor in instrumentors:
            instrumentor.instrument()
        save()
        observed.append(cpu_milliseconds(save))
    return bare, observed


def measure_saves(selection: list[str]) -> list[str]:
    """Print a line per kind of save, and return those over the budget."""
    exporter_selection.EXPORTERS["local"] = lambda *_: DiscardingExporter()  # type: ignore[assignment]
    exceeded = []
    with tempfile.TemporaryDirectory() as state:
        watch = ckpt_observe.observe(exporters="local", dir=state)
        instrumentors = list(ckpt_observe.api._watch._instrumentors)  # type: ignore[union-attr]
        for name in selection:
            create, size = SAVES[name]
            memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 4 * size else None
            try:
                with tempfile.TemporaryDirectory(dir=memory) as directory:
                    bare, observed = measure_save(create(Path(directory) / "checkpoint", size), instrumentors)
            except ImportError as error:
                print(f"{name}: skipped, {error}")
                continue
            before = statistics.median(bare)
            added = statistics.median(observed) - before
            share = added / before
            print(f"{name}: bare {before:.2f} ms of CPU, ours adds {added:.2f} ms = {share:.1%} ({len(bare)} saves each)")
            if share > BUDGETS[size]:
                exceeded.append(name)
        watch.close(10)
    return exceeded


CPU = "import resource; cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])"


def import_milliseconds(module: str, directory: str, *, observed: bool) -> float:
    """Return the CPU time of an import in a new process."""
    prelude = "import ckpt_observe.auto, ckpt_observe.instrument.patching" if observed else "import wrapt"
    program = f"{prelude}\n{CPU}\nbefore = cpu()\nimport {module}\nprint(cpu() - before)"
    environ = {**os.environ, "CKPT_OBSERVE_DIR": directory}
    environ.setdefault("KERAS_BACKEND", "jax")
    process = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ImportError(process.stderr.strip().rpartition("\n")[2])
    return float(process.stdout.splitlines()[-1]) * 1000


def measure_imports(selection: list[str]) -> None:
    """Print a line per library. The best of several runs counts, because everything else only adds to it."""
    with tempfile.TemporaryDirectory() as directory:
        for name in selection:
            try:
                runs = [
                    [import_milliseconds(IMPORTS[name], directory, observed=each) for each in (False, True)] for _ in range(IMPORT_RUNS)
                ]
            except ImportError as error:
                print(f"import {name}: skipped, {error}")
                continue
            bare, observed = (min(times) for times in zip(*runs, strict=True))
            print(f"import {name}: bare {bare:.0f} ms of CPU, ours adds {observed - bare:.0f} ms = {(observed - bare) / bare:.1%}")


def main(arguments: list[str]) -> int:
    part = arguments.pop(0) if arguments[:1] in (["saves"], ["imports"]) else ""
    exceeded = measure_saves(arguments or [*SAVES]) if part != "imports" else []
    if part != "saves":
        measure_imports([*IMPORTS] if not part else arguments or [*IMPORTS])
    if exceeded:
        print(f"EXCEEDED: {', '.join(exceeded)}")
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
