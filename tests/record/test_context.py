"""The current operation in threads, executors, asyncio tasks and generators."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import trace

import ckpt_observe
from ckpt_observe.record import redact
from ckpt_observe.testing.spans import outline


def save(name="write"):
    with ckpt_observe.checkpoint("save") as operation, operation.phase(name):
        pass


def tree(recording):
    return outline(recording.spans()).splitlines()


def test_executor_with_copied_context(recording):
    """With `copy_context`, operations in threads of an executor are children of the task."""
    with ckpt_observe.task("t"), ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(contextvars.copy_context().run, save) for _ in range(8)]:
            future.result()
    assert tree(recording) == ["task t", *["  checkpoint.save", "    checkpoint.write"] * 8]


def test_to_thread(recording):
    """Operations in `asyncio.to_thread`, which copies the context, are children of the task."""

    async def main():
        with ckpt_observe.task("t"):
            await asyncio.gather(*(asyncio.to_thread(save) for _ in range(4)))

    asyncio.run(main())
    assert tree(recording) == ["task t", *["  checkpoint.save", "    checkpoint.write"] * 4]


def test_interleaved_tasks(recording):
    """Asyncio tasks that are switched in the middle of their phases do not affect each other's operations."""

    async def save_in_turn(number, turn, next_turn):
        async with ckpt_observe.checkpoint("save", id=str(number)) as operation:
            with operation.phase("serialize"):
                await turn.wait()
                next_turn.set()
            with ckpt_observe.phase("write"):
                await asyncio.sleep(0)
                assert trace.get_current_span() is operation

    async def main():
        turns = [asyncio.Event() for _ in range(6)]
        async with ckpt_observe.task("t"):
            saves = [asyncio.create_task(save_in_turn(number, turns[number], turns[number + 1])) for number in range(5)]
            turns[0].set()
            await asyncio.gather(*saves)

    asyncio.run(main())
    assert tree(recording) == ["task t", *["  checkpoint.save", "    checkpoint.serialize", "    checkpoint.write"] * 5]


def test_one_scope_in_many_tasks(recording):
    """If many tasks enter one scope object at the same time, each ends its own operation."""
    scope = ckpt_observe.checkpoint("save")

    async def save_in_turn(turn, next_turn):
        with scope as operation:
            await turn.wait()
            next_turn.set()
            assert operation.open_page
        assert not operation.open_page

    async def main():
        turns = [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.create_task(save_in_turn(turns[number], turns[number + 1])) for number in range(3)]
        await asyncio.sleep(0)
        turns[0].set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert [page.ended for page in recording.pages] == [1, 1, 1]


def test_one_scope_in_many_threads(recording):
    """The same with threads, which leave the scope in the order in which they entered it."""
    scope = ckpt_observe.checkpoint("save")
    barrier, gates, ended = threading.Barrier(3), [threading.Event() for _ in range(4)], []

    def save_in_turn(number):
        with scope as operation:
            barrier.wait(10)
            gates[number].wait(10)
        ended.append(not operation.open_page)
        gates[number + 1].set()

    threads = [threading.Thread(target=save_in_turn, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    gates[0].set()
    for thread in threads:
        thread.join(10)
    assert ended == [True] * 3
    assert [page.ended for page in recording.pages] == [1, 1, 1]


def test_decorated_functions(recording):
    """Each call of a decorated function, coroutine, generator or asynchronous generator is one operation."""

    @ckpt_observe.checkpoint("save")
    def plain(value):
        """Doc."""
        with ckpt_observe.phase("write"):
            return value

    @ckpt_observe.checkpoint("load")
    async def coroutine(value):
        await asyncio.sleep(0)
        with ckpt_observe.phase("read"):
            return value

    @ckpt_observe.checkpoint("list")
    def generator():
        with ckpt_observe.phase("read"):
            yield 1
        yield 2

    @ckpt_observe.checkpoint("verify")
    async def async_generator():
        yield 1
        with ckpt_observe.phase("validate"):
            await asyncio.sleep(0)
        yield 2

    async def all_of(items):
        return [item async for item in items]

    assert (plain(5), plain.__name__, plain.__doc__) == (5, "plain", "Doc.")
    assert asyncio.run(coroutine(6)) == 6
    assert list(generator()) == [1, 2]
    assert asyncio.run(all_of(async_generator())) == [1, 2]
    assert tree(recording) == [
        "checkpoint.save", "  checkpoint.write", "checkpoint.load", "  checkpoint.read",
        "checkpoint.list", "  checkpoint.read", "checkpoint.verify", "  checkpoint.validate",
    ]  # fmt: skip


def test_consumer_of_a_generator(recording):
    """Operations of the consumer between two steps are not children of the generator's operation."""

    @ckpt_observe.checkpoint("list")
    def generator():
        yield 1
        yield 2

    for _ in generator():
        save()
    assert tree(recording) == ["checkpoint.list", *["checkpoint.save", "  checkpoint.write"] * 2]


def test_decorated_task_and_phase(recording):
    """`task` and `phase` can be used as decorators, and recursive calls nest."""

    @ckpt_observe.phase("compress")
    def compress():
        pass

    @ckpt_observe.task("walk")
    def walk(depth):
        with ckpt_observe.checkpoint("save"):
            compress()
        if depth:
            walk(depth - 1)

    compress()  # outside an operation: not recorded
    walk(1)
    assert tree(recording) == [
        "task walk", "  checkpoint.save", "    checkpoint.compress", "  task walk", "    checkpoint.save", "      checkpoint.compress",
    ]  # fmt: skip


def test_scope_is_used_before_anything_is_recorded(recording, monkeypatch):
    """A scope that was used in a trace that is not recorded has its attributes later. There, they are not redacted."""
    redacted = []
    monkeypatch.setattr(redact, "attributes", lambda raw, redact=redact.attributes: redacted.append(raw) or redact(raw))
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True))
    scope = ckpt_observe.checkpoint("save", id="c1", attributes={"team": "ml"})
    with trace.use_span(unsampled), scope as operation:
        assert not operation.is_recording()
    assert not redacted
    with scope:
        pass
    [span] = recording.spans()
    assert (span.attributes["checkpoint.id"], span.attributes["team"]) == ("c1", "ml")


OWN_CONTEXT = """
import os
import subprocess
import sys
import threading
from opentelemetry.context.context import Context, _RuntimeContext

class ThreadContext(_RuntimeContext):
    state = threading.local()
    def attach(self, context):
        token, self.state.context = self.get_current(), context
        return token
    def get_current(self):
        return getattr(self.state, "context", Context())
    def detach(self, token):
        self.state.context = token
"""

NESTED_SAVE = """
import ckpt_observe
from opentelemetry import context, trace
from own_context import ThreadContext
assert type(context._RUNTIME_CONTEXT) is ThreadContext
ckpt_observe.observe(exporters="local", dir="state")
with ckpt_observe.checkpoint("save") as save:
    assert trace.get_current_span() is save
    with ckpt_observe.checkpoint("load") as load:
        assert trace.get_current_span() is load
        assert load.trace_id == save.trace_id
    assert trace.get_current_span() is save
assert trace.get_current_span() is trace.INVALID_SPAN
"""


def test_other_implementation_of_the_context(tmp_path):
    """A program may select another implementation of OpenTelemetry's context than context variables. Operations use it, too."""
    (tmp_path / "own_context.py").write_text(OWN_CONTEXT)
    distribution = tmp_path / "own_context-1.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: own-context\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[opentelemetry_context]\nown_context = own_context:ThreadContext\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OTEL_PYTHON_CONTEXT": "own_context"}
    subprocess.run([sys.executable, "-c", NESTED_SAVE], check=True, cwd=tmp_path, env=environment, timeout=120)
