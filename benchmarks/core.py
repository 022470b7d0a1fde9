"""Compares the core with doing the same by hand: `python -m benchmarks.core [section ...]`.

Both sides of a ratio are measured alternately, so that a busy machine slows both. A ratio is the median of the ratios of all rounds. If a
result is over its budget, it is marked EXCEEDED, and the exit code is 1.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec

import msgspec

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.query import Query

STATE = {
    "step": 7,
    "conversation": [{"role": "user" if i % 2 else "assistant", "content": f"message {i}: " + "words " * 9} for i in range(16)],
    "memory": {"facts": ["the sky is blue", "water is wet"], "scores": {"a": 0.5, "b": -1.25}},
    "plan": ["read", "think", "write"],
    "budget": {"tokens": 12_000, "dollars": 0.42},
    "status": "running",
    "metadata": {"model": "m-1", "nothing": None, "flag": True},
}
"""A typical agent state of about 2 KB."""

ROUNDS, CALLS_PER_ROUND = 30, 10
exceeded = []


def measure_seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Times(list):
    """The median seconds of a call, one per round. `ours / theirs` is the median of their ratios."""

    def __truediv__(self, other):
        return statistics.median(ours / theirs for ours, theirs in zip(self, other, strict=True))

    @property
    def milliseconds(self):
        return statistics.median(self) * 1000


def in_turns(*calls, rounds=ROUNDS, calls_per_round=CALLS_PER_ROUND):
    """Measure the calls alternately, after a warm-up. Return the Times of each."""
    for call in calls:
        call()
    times = [Times() for _ in calls]
    for _ in range(rounds):
        for call, call_times in zip(calls, times, strict=True):
            call_times.append(statistics.median(measure_seconds(call) for _ in range(calls_per_round)))
    return times


def report(what, value, budget=None, unit="×", *, at_most=True):
    good = budget is None or (value <= budget if at_most else value >= budget)
    if not good:
        exceeded.append(what)
    allowed = "" if budget is None else f"   {'≤' if at_most else '≥'} {budget:g} {'ok' if good else 'EXCEEDED'}"
    print(f"  {what:<62}{value:>10.2f} {unit}{allowed}")


def durable_save(place):
    """Save a 2 KB state in the file store; by hand: write, fsync, rename, fsync of the directory."""
    data = msgspec.json.encode(STATE)
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)

    def bare():
        name = f"{place}/{secrets.token_hex(8)}"
        file = os.open(name + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, data)
        os.fsync(file)
        os.close(file)
        os.rename(name + ".tmp", name)
        os.fsync(directory)

    checkpointer = Checkpointer(f"{place}/store")
    zipped = Checkpointer(f"{place}/zipped", compression="gzip")
    hand, ours, ours_zipped = in_turns(bare, lambda: checkpointer.save("t", STATE), lambda: zipped.save("t", STATE))
    report("save on file / bare durable write", ours / hand, 1.3)
    report("save on file", ours.milliseconds, 5, "ms")
    report("save on file with gzip", ours_zipped.milliseconds, 8, "ms")
    report("added by gzip", ours_zipped.milliseconds - ours.milliseconds, 5, "ms")
    os.close(directory)


def load(place):
    """Load a 2 KB state from the file store; by hand: read and parse the same bytes."""
    checkpointer, zipped = Checkpointer(f"{place}/store"), Checkpointer(f"{place}/zipped", compression="gzip")
    id = checkpointer.save("t", STATE).id
    zipped_id = zipped.save("t", STATE).id
    path = f"{place}/plain.json"
    with open(path, "wb") as file:
        file.write(msgspec.json.encode(STATE))

    def bare():
        with open(path, "rb") as file:
            msgspec.json.decode(file.read())

    hand, ours, ours_zipped = in_turns(bare, lambda: checkpointer.load("t", id), lambda: zipped.load("t", zipped_id), rounds=50)
    report("load by id / bare read and parse", ours / hand, 2)
    report("load", ours.milliseconds, 2, "ms")
    report("load with gzip", ours_zipped.milliseconds, 3, "ms")


def sizes(place):
    """Size of typical states of 500 to 2000 bytes. The readable header of a checkpoint file is not compressed."""
    for count in (3, 8, 16):
        state = {**STATE, "conversation": STATE["conversation"][:count]}
        state_size = len(msgspec.json.encode(state))
        size = {}
        for url, suffix in (("", ".jsonl"), ("?gzip", ".jsonl.gz")):
            Checkpointer(f"jsonl://{place}/{count}{url[1:]}{url}").save("t", state, id="x")
            size[url] = os.path.getsize(f"{place}/{count}{url[1:]}/t/x{suffix}")
        print(f"  state of {state_size} bytes: jsonl {size['']}, with gzip {size['?gzip']}")
        # Digests do not compress, so gzip cannot halve a state that is smaller than its header.
        report("jsonl: saved by gzip", 100 * (1 - size["?gzip"] / size[""]), 50 if state_size > 1000 else None, "%", at_most=False)
        for codec in ("none", "gzip", "zstd"):
            checkpointer = Checkpointer(f"{place}/{count}{codec}", compression=codec)
            checkpointer.save("agent-run-42", state, step=1)
            info = checkpointer.save("agent-run-42", state, step=2)
            what = f"file, {codec}: {info.payload_size} bytes of state, {info.header_size} of header"
            report(what, info.stored_size, 800 if codec != "none" else None, "B")


def sqlite_save(place):
    """Save a 2 KB state in SQLite; peer: LangGraph's SqliteSaver.put of the same state, with the same durability."""
    if find_spec("langgraph") is None:
        print("  skipped: langgraph-checkpoint-sqlite is not installed")
        return
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(f"{place}/theirs.db", check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    connection.execute("PRAGMA synchronous = FULL")
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

    def theirs():
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = STATE
        saver.put(config, checkpoint, {}, {})

    checkpointer = Checkpointer(f"sqlite://{place}/ours.db")
    langgraph, ours = in_turns(theirs, lambda: checkpointer.save("t", STATE))
    report(f"save on SQLite / LangGraph put, first {ROUNDS * CALLS_PER_ROUND}", ours / langgraph, 1)
    in_turns(theirs, lambda: checkpointer.save("t", STATE), rounds=20)
    langgraph, ours = in_turns(theirs, lambda: checkpointer.save("t", STATE))
    report("the same, 200 saves later, after both WAL files were reset", ours / langgraph)  # no budget, see ARCHITECTURE.md, "Cost"


def many(place):
    """List, query and save with 100,000 checkpoints in SQLite."""
    checkpointer = Checkpointer(f"sqlite://{place}/many.db")
    for start in range(0, 100_000, 5000):
        with checkpointer.batch() as batch:
            for n in range(start, start + 5000):
                batch.save(f"task{n % 1000}", {"n": n}, step=n, status="failed" if n % 1000 == 7 else "ok")
    empty = Checkpointer(f"sqlite://{place}/empty.db")
    empty_times, full_times = in_turns(lambda: empty.save("few", {"n": 1}), lambda: checkpointer.save("few", {"n": 1}))
    report("save with 100,000 checkpoints / with none", full_times / empty_times, 1.5)
    middle = checkpointer.list("task5")[50].created
    run = fill_one_task(place)
    queries = {
        "list a task of 100": lambda: checkpointer.list("task5"),
        "newest 100 checkpoints": lambda: checkpointer.find(Query(limit=100)),
        "newest 100 failed checkpoints": lambda: checkpointer.find(Query(status="failed", limit=100)),
        "checkpoints of one second": lambda: checkpointer.find(Query(since=middle, until=middle + dt.timedelta(seconds=1), limit=100)),
        "steps 500 to 600": lambda: checkpointer.find(Query(min_step=500, max_step=600)),
        "newest 100 of one task": lambda: run.find(Query(task="run", limit=100)),
        "100 with a parameter": lambda: run.find(Query(parameters={"lr": 7})),
        "newest 100 with a common parameter": lambda: run.find(Query(parameters={"optimizer": "adam"}, limit=100)),
        "a common parameter and an unused status": lambda: run.find(Query(task="run", parameters={"optimizer": "adam"}, status="failed")),
        "100 with a tag": lambda: run.find(Query(tag="best")),
    }
    for name, query in queries.items():
        report(f"{name} among 100,000", in_turns(query, rounds=5, calls_per_round=1)[0].milliseconds, 50, "ms")


def fill_one_task(place):
    """Return a Checkpointer with 100,000 checkpoints of one task, all with parameters, some with a tag."""
    checkpointer = Checkpointer(f"sqlite://{place}/run.db")
    drafter = checkpointer._drafter  # a batch has no metadata
    for start in range(0, 100_000, 5000):
        labels = [
            drafter.label("run", None, n, "ok", {"lr": n % 1000, "optimizer": "adam"}, ["best"] if n % 1000 == 7 else ())
            for n in range(start, start + 5000)
        ]
        checkpointer.store.put_many([drafter.draft(label, {"n": 1}) for label in labels])
    return checkpointer


def retention(place):
    """Save in the file store with many and with few checkpoints."""
    small, large = Checkpointer(f"{place}/small", keep_last=10), Checkpointer(f"{place}/large", keep_last=1000)
    for _ in range(1000):
        large.save("t", {"n": 1})
    small_times, large_times = in_turns(lambda: small.save("t", {"n": 1}), lambda: large.save("t", {"n": 1}), rounds=10)
    report("save with keep_last=1000 / with keep_last=10", large_times / small_times)


ARRAYS = """
import os, resource, sys, time
import numpy as np
if sys.argv[1] == "torch.save":
    import torch
from ckpt_observe.core import Checkpointer
method, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
state = {f"layer{i}": np.full(2**23, i, np.float64) for i in range(count)}
state["step"] = 1
if method == "torch.save":
    state = {key: torch.from_numpy(value) if hasattr(value, "dtype") else value for key, value in state.items()}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
os.sync()
start = time.perf_counter()
if method == "ours":
    Checkpointer(place, format="arrays").save("t", state)
elif method != "raw":
    with open(place + "/theirs", "wb") as file:
        torch.save(state, file) if method == "torch.save" else np.savez(file, **state)
        file.flush()
        os.fsync(file.fileno())
else:
    with open(place + "/raw", "wb", buffering=0) as file:
        for value in list(state.values())[:-1]:
            file.write(memoryview(value).cast("B"))
        os.fsync(file.fileno())
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def arrays(place):
    """Save 1 GiB of arrays; peers: writing the same bytes raw, numpy.savez, torch.save. All call fsync, each in its own process."""
    if find_spec("numpy") is None:
        print("  skipped: numpy is not installed")
        return
    count = int(os.environ.get("BENCH_GIB", "1")) * 16
    budgets = {"raw": 0.8, "numpy.savez": 1, "torch.save": 1}
    if find_spec("torch") is None:
        print("  torch.save skipped: torch is not installed")
        del budgets["torch.save"]
    times, extra_memory = {method: Times() for method in ("ours", *budgets)}, []
    order = list(times)
    for _ in range(2 * len(order)):
        order.append(order.pop(0))  # rotate, because a shared disk is slower after a large write
        for method in order:
            scratch = tempfile.mkdtemp(dir=place)
            run = subprocess.run([sys.executable, "-c", ARRAYS, method, scratch, str(count)], capture_output=True, text=True, check=True)
            seconds, kibibytes = map(float, run.stdout.split())
            times[method].append(seconds)
            extra_memory += [kibibytes] if method == "ours" else []
            shutil.rmtree(scratch)
    for method, budget in budgets.items():
        speed = statistics.median(times[method]) / statistics.median(times["ours"])
        report(f"speed of saving 1 GiB of arrays / {method}", speed, budget, at_most=False)
    report("extra memory", max(extra_memory) / 1024, 64, "MiB")


SECTIONS = [durable_save, load, sizes, sqlite_save, many, retention, arrays]


def main():
    selected = set(sys.argv[1:])
    for section in SECTIONS:
        if selected and section.__name__ not in selected:
            continue
        print(f"{section.__name__}: {section.__doc__}")
        place = tempfile.mkdtemp(prefix="ckpt-bench-", dir=os.environ.get("BENCH_DIR"))
        try:
            section(place)
        finally:
            shutil.rmtree(place)
    if exceeded:
        sys.exit(f"over budget: {', '.join(exceeded)}")


if __name__ == "__main__":
    main()
