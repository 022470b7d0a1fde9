"""Processes: a save in a child is in the trace of the task that started it, and the host program sees no difference.

Each program runs in an interpreter of its own. It prints what it can see of itself, once observed and once not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from ckpt_observe import config, wiring
from ckpt_observe.semconv import attributes as names
from ckpt_observe.tracestore import FILENAME, TraceReader

PROGRAM = """
import os, random, sys
{start}
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import ckpt_observe

def save(name="x"):
    with ckpt_observe.checkpoint("save", id=name):
        pass
    from ckpt_observe import api
    if api._watch is not None:
        assert api._watch.flush(30)
    return name

def save_in_thread(name):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(save, name).result()

def fail(name):
    save(name)
    raise ValueError(name)

{functions}

if __name__ == "__main__":
    random.seed(7)
    {main}
    print("random", random.random())
    print("environ", sorted(os.environ.items()))
"""


def run(tmp_path, main, *, functions="", start="import ckpt_observe.auto", observed=True, launcher=(), **environ):
    """Run a program. Return its output and the spans in the trace store."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(start=start, functions=functions, main=main.strip().replace("\n", "\n    ")))
    state = tmp_path / "state"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("CKPT_", "OTEL_", "PYTEST", "COV"))},
        "CKPT_OBSERVE_DIR": str(state),
        "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
        "CKPT_OBSERVE_ENABLED": str(observed).lower(),
        **environ,
    }
    done = subprocess.run([*launcher, sys.executable, path], env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    spans = []
    if state.exists():
        wiring.deliver_dead(config.read(exporters="local", dir=state), 60)  # what it had no time for at its exit
        with TraceReader(state / FILENAME) as reader:
            spans = [span for each in reader.newest(100) for span in reader.spans(each.trace_id)]
    return done.stdout, spans, done.stderr


def saves(spans):
    return {span.attributes[names.ID]: span for span in spans if span.name == "checkpoint.save"}


def tasks(spans):
    return {span.attributes[names.TASK_NAME]: span for span in spans if span.name.startswith("task ")}


def assert_in_task(spans, name, task, *, inferred=False):
    """Check the trace, the parent, the attributes that become metric labels, and the mark of a save."""
    span, parent = saves(spans)[name], tasks(spans)[task]
    assert (span.trace_id, span.parent_span_id) == (parent.trace_id, parent.span_id)
    assert (span.attributes[names.TASK_NAME], span.attributes[names.TASK_ID]) == (task, parent.attributes[names.TASK_ID])
    assert span.attributes.get(names.TASK_INFERRED, False) is inferred


START = """
context = multiprocessing.get_context({method!r})
with ckpt_observe.task("train", id="run-1", session="s"):
    children = [context.Process(target=save, args=("main",)), context.Process(target=save_in_thread, args=("thread",))]
    for child in children:
        child.start()
        print(sorted(vars(child)))
    for child in children:
        child.join()
        print(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_belongs_to_its_task(tmp_path, method):
    """Each start method: saves of a child, in its main thread and in others, are in the trace of the task, with its name and id.

    The `Process` object, the environment and the random numbers of the program are the same as without observation."""
    metrics = tmp_path / "metrics.prom"
    prometheus = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "CKPT_OBSERVE_METRICS_TEXTFILE": str(metrics)}
    output, spans, log = run(tmp_path, START.format(method=method), **prometheus)
    assert re.findall(r'^checkpoint_operations_total{.*task="([^"]*)".*} ([1-9]\d*)', metrics.read_text(), re.MULTILINE) == [("train", "2")]
    assert_in_task(spans, "main", "train")
    assert_in_task(spans, "thread", "train")
    assert saves(spans)["thread"].attributes[names.SESSION_ID] == "s"
    bare, nothing, _ = run(tmp_path, START.format(method=method), observed=False, CKPT_OBSERVE_DIR=str(tmp_path / "other"), **prometheus)
    assert nothing == spans  # the store of the first run
    assert strip(output) == strip(bare), log


def strip(output):
    """Remove the variables that differ between the two runs on purpose."""
    return [
        [pair for pair in eval(line[8:]) if pair[0] not in ("CKPT_OBSERVE_DIR", "CKPT_OBSERVE_ENABLED")]
        if line.startswith("environ ")
        else line
        for line in output.splitlines()
    ]


CHILD = """
with ckpt_observe.task("train", id="run-1"):
    child = multiprocessing.get_context({method!r}).Process(target={target}, args=("main",))
    child.start()
    child.join()
print(child.exitcode)
"""


def test_without_the_carried_context_the_save_is_a_root(tmp_path):
    """Control: if the context does not travel, the child still saves, but outside the trace."""
    start = "import ckpt_observe.auto\nfrom ckpt_observe.instrument import processes\nprocesses.pack = lambda _context: None"
    _, spans, _ = run(tmp_path, CHILD.format(method="spawn", target="save"), start=start)
    assert saves(spans)["main"].parent_span_id == ""


def test_child_starts_if_the_context_cannot_travel(tmp_path):
    """An error of ours in the parent or in the child is logged; the child runs, and its save is recorded."""
    start = "import ckpt_observe.auto\nfrom ckpt_observe.instrument import processes\nprocesses.{} = lambda _: 1 / 0"
    for broken in ("pack", "unpack"):
        output, spans, log = run(tmp_path, CHILD.format(method="spawn", target="save"), start=start.format(broken))
        assert output.startswith("0\n")
        assert saves(spans)["main"].parent_span_id == ""
        assert "Internal error in ckpt_observe" in log


def test_child_that_is_observed_late(tmp_path):
    """A child that imports `ckpt_observe.auto` in its target gets the context too."""
    functions = "def observe_and_save(name):\n    import ckpt_observe.auto\n    save(name)"
    main = "import ckpt_observe.auto\n" + CHILD.format(method="spawn", target="observe_and_save")
    _, spans, _ = run(tmp_path, main, functions=functions, start="")
    assert_in_task(spans, "main", "train")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_under_the_run_command(tmp_path, method):
    """With `ckpt-observe run`, neither the program nor its child imports anything of ours to be observed."""
    launcher = [sys.executable, "-m", "ckpt_observe", "run", "--"]
    _, spans, _ = run(tmp_path, CHILD.format(method=method, target="save"), start="", launcher=launcher)
    assert_in_task(spans, "main", "train")


def test_child_that_is_not_observed(tmp_path):
    """If only the main program is observed, the child runs normally, and imports nothing of ours that it does not use."""
    functions = "def look(name):\n    print(name, 'ckpt_observe.record.recorder' in sys.modules, flush=True)"
    main = "import ckpt_observe.auto\n" + CHILD.format(method="spawn", target="look")
    output, spans, _ = run(tmp_path, main, functions=functions, start="")
    assert output.startswith("main False\n0\n")
    assert saves(spans) == {}


def test_grandchildren(tmp_path):
    """A context that a child was started with reaches the children of that child, from each of its threads."""
    functions = """
def start_child(name):
    child = multiprocessing.get_context("spawn").Process(target=save, args=(name,))
    child.start()
    child.join()

def start_in_thread(name):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(start_child, name).result()
"""
    _, spans, _ = run(tmp_path, CHILD.format(method="spawn", target="start_in_thread"), functions=functions)
    assert_in_task(spans, "main", "train")


def test_concurrent_tasks_are_not_mixed(tmp_path):
    """Tasks that run at the same time, in threads, each start a child, with each method: each save is in the trace of its own task."""
    main = """
import threading
barrier = threading.Barrier(6)
def train(name):
    with ckpt_observe.task(name, id=name):
        barrier.wait()
        child = multiprocessing.get_context(name.partition(" ")[0]).Process(target=save_in_thread, args=(name,))
        child.start()
        child.join()
        barrier.wait()
names = [f"{method} {number}" for method in ("fork", "spawn", "forkserver") for number in range(2)]
threads = [threading.Thread(target=train, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    _, spans, _ = run(tmp_path, main)
    assert len({span.trace_id for span in tasks(spans).values()}) == 6
    for name in tasks(spans):
        assert_in_task(spans, name, name)


POOLS = {
    "executor": "pool = ProcessPoolExecutor(1, mp_context=context); submit = pool.submit",
    "apply_async": "pool = context.Pool(1); submit = lambda f, *args: Result(pool.apply_async(f, args))",
    "map": "pool = context.Pool(1); submit = lambda f, *args: Result(pool.map_async(f, args), 0)",
    "imap": "pool = context.Pool(1); submit = lambda f, *args: Result(pool.imap(f, args), next)",
}

POOL = """
class Result:
    def __init__(self, result, how=None):
        self.value, self.how = result, how
    def result(self):
        return next(self.value) if self.how is next else self.value.get() if self.how is None else self.value.get()[0]

context = multiprocessing.get_context({method!r})
{pool}
with ckpt_observe.task("a {name}", id="a"):
    print(submit(save, "first {name}").result())
with ckpt_observe.task("b {name}", id="b"):
    print(submit(save, "second {name}").result())
    for function in (fail, lambda: None):
        try:
            submit(function, "third {name}").result()
        except Exception as error:
            print(type(error).__name__, str(error).partition(" at 0x")[0])
print(submit(save, "fourth {name}").result())
with pool:
    pass
"""


@pytest.mark.parametrize(("method", "pools"), [("spawn", ["executor"]), ("fork", POOLS)])
def test_worker_of_a_pool_works_for_several_tasks(tmp_path, method, pools):
    """One worker, started in one task: each save belongs to the task that submitted it, and to none if none did.

    Results and exceptions, also of a function that cannot be pickled, are the same as without observation."""
    main = "".join(POOL.format(method=method, pool=POOLS[name], name=name) for name in pools)
    output, spans, log = run(tmp_path, main)
    for name in pools:
        assert_in_task(spans, f"first {name}", f"a {name}")
        assert_in_task(spans, f"second {name}", f"b {name}")
        assert_in_task(spans, f"third {name}", f"b {name}")
        assert saves(spans)[f"fourth {name}"].parent_span_id == ""
    bare, _, _ = run(tmp_path, main, observed=False, CKPT_OBSERVE_DIR=str(tmp_path / "other"))
    assert strip(output) == strip(bare), log


HOST_SPANS = """
from multiprocessing.pool import ThreadPool
from opentelemetry import baggage, context as otel_context, trace
from opentelemetry.sdk.trace import TracerProvider

def span_of_host(number, sampled=True):
    return trace.NonRecordingSpan(trace.SpanContext(number, number, False, trace.TraceFlags(int(sampled))))

def look(name):
    save(name)
    span = TracerProvider().get_tracer("host").start_span("work")
    current = trace.get_current_span().get_span_context().span_id
    return name, current, span.is_recording(), span.parent is None, baggage.get_baggage("tenant")

def initialize(tenant="initializer"):
    otel_context.attach(baggage.set_baggage("tenant", tenant))

def save_in_span(name):
    with trace.use_span(span_of_host(9)):
        save(name)
"""
POOLS_OF_HOST = {
    "spawn": "multiprocessing.get_context('spawn').Pool(1, initialize)",
    "fork": "multiprocessing.get_context('fork').Pool(1)",
    "executor": "ProcessPoolExecutor(1, multiprocessing.get_context('spawn'), initialize)",
    "threads": "ThreadPool(1, initialize)",
}


IN_A_POOL = """
initialize("main")
with trace.use_span(span_of_host(1)), {pool} as pool:
    with trace.use_span(span_of_host(2, sampled=False)):
        print(list(pool.map(look, ["unsampled {name}"])))
    with trace.use_span(span_of_host(3)):
        print(list(pool.map(look, ["span {name}"])))
    with ckpt_observe.task("train {name}", id="run-1"):
        print(list(pool.map(look, ["task {name}"])))
        print(list(pool.map(save_in_span, ["inner {name}"])))
"""


def test_context_of_the_host_program_in_a_pool(tmp_path):
    """Spans, baggage and the current span of the host program in a worker are the same as without observation.

    A save is nevertheless a child of the span or task in which it was submitted, and not of the span in which the worker was started."""
    main = "".join(IN_A_POOL.format(name=name, pool=pool) for name, pool in POOLS_OF_HOST.items())
    output, spans, log = run(tmp_path, main, functions=HOST_SPANS)
    recorded = saves(spans)
    assert recorded.keys() == {f"{kind} {name}" for kind in ("span", "task", "inner") for name in POOLS_OF_HOST}, log
    for name in POOLS_OF_HOST:
        assert recorded[f"span {name}"].parent_span_id == f"{3:016x}"
        assert_in_task(spans, f"task {name}", f"train {name}")
        inner = recorded[f"inner {name}"]
        assert (inner.parent_span_id, inner.attributes[names.TASK_NAME]) == (f"{9:016x}", f"train {name}")
    bare, _, _ = run(tmp_path, main, functions=HOST_SPANS, observed=False, CKPT_OBSERVE_DIR=str(tmp_path / "other"))
    assert strip(output) == strip(bare), log


def test_forked_pool_keeps_the_suppression_of_the_host_program(tmp_path):
    """A pool that is forked in `suppress_instrumentation()` stays suppressed, as without observation: its saves are not recorded."""
    main = """
with suppress_instrumentation():
    pool = multiprocessing.get_context("fork").Pool(1)
with pool, ckpt_observe.task("train"):
    print(pool.map(save_if_instrumented, ["a"]))
"""
    functions = """
from opentelemetry.instrumentation.utils import is_instrumentation_enabled, suppress_instrumentation

def save_if_instrumented(name):
    save(name)
    return is_instrumentation_enabled()
"""
    pytest.importorskip("opentelemetry.instrumentation.utils")
    output, spans, _ = run(tmp_path, main, functions=functions)
    assert output.startswith("[False]\n")
    assert saves(spans) == {}


def test_save_outside_of_a_task_in_a_pool_that_was_forked_in_a_span(tmp_path):
    """A worker does not belong to the host program's span in which it was started: a save that nothing submitted is a root."""
    main = """
with trace.use_span(span_of_host(1)):
    pool = multiprocessing.get_context("fork").Pool(1)
with pool:
    print(pool.map(save, ["a"]))
"""
    _, spans, _ = run(tmp_path, main, functions=HOST_SPANS)
    assert saves(spans)["a"].parent_span_id == ""
