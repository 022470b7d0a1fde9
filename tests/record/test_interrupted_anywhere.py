"""An exception that a signal handler raises reaches the host program, wherever in our code it arrives, and the operation ends once."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from opentelemetry.context import get_current

import ckpt_observe
from benchmarks.nothing import Library, NothingInstrumentor
from ckpt_observe.instrument.langgraph_state import StateDetails
from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.managed_phases import ManagedPhases
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.journal import pool as pools
from ckpt_observe.journal.pool import Pool
from ckpt_observe.record import encoding, guard, redact, running_tasks
from ckpt_observe.record.operation import current_position
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from tests.record.interruptions import interrupt_everywhere, raise_time_up


class Odd:
    """A value that cannot be read."""

    size = 1

    def item(self):
        raise ValueError


def save_in_a_block():
    with ckpt_observe.task("train", id="run-42"):  # noqa: SIM117
        with ckpt_observe.checkpoint("save", step=3, attributes={"odd": Odd(), "text": "password=hunter2 and more"}) as operation:
            with ckpt_observe.phase("write") as phase:
                phase.set({"size": 7})
            with operation.phase("own"):
                operation.add_event("flushed", {"values": [1, 2.5]})
            operation.set({"key": "a b"})


def fail_in_a_block():
    with pytest.raises(KeyError), ckpt_observe.checkpoint("save"), ckpt_observe.phase("write"):
        raise KeyError("host's")


def call_patched_function():
    Library().save("run-42", None, step=12)


@ckpt_observe.checkpoint("list")
def generate():
    yield 1
    yield 2


def iterate():
    list(generate())


@ckpt_observe.checkpoint("load")
async def load():
    return 1


def run_coroutine():
    coroutine = load()
    try:
        coroutine.send(None)
    except StopIteration:
        pass


@ckpt_observe.checkpoint("list")
async def generate_async():
    yield 1


def iterate_async():
    generator = generate_async()
    for _ in range(2):
        try:
            generator.__anext__().send(None)
        except (StopIteration, StopAsyncIteration):
            pass


@ckpt_observe.checkpoint("save")
def save_in_background():
    return Future()


def drop_future():
    save_in_background()


def save_unsampled():
    recorder.samples = lambda _trace, _sampled: False
    try:
        with ckpt_observe.checkpoint("save"), ckpt_observe.checkpoint("save"):
            pass
    finally:
        recorder.samples = None


def observe_row(row, function):
    wrapper = row.wrapper_for(function)
    return lambda *args: wrapper(function, None, args, {})


@contextlib.contextmanager
def open_cursor():
    yield


serialize = observe_row(SummedPhase("toy", "serialize", lambda _operation, _args, _kwargs, result: (None, len(result))), lambda: b"1")
cursor = observe_row(ManagedPhases("toy", {"save": ("wait", "write", "commit")}), open_cursor)


def put():
    serialize()
    with cursor():
        serialize()


call_library = observe_row(LibraryCall("toy", "save", lambda _instance, _arguments: {names.TASK_ID: "run-42", names.STEP: 3}), put)
call_library.__name__ = "call_library"

ACTIONS = [
    save_in_a_block, fail_in_a_block, call_patched_function, iterate, run_coroutine, iterate_async, drop_future, save_unsampled,
    call_library,
]  # fmt: skip


class Serializer:
    """LangGraph's own, which is asked again for each value."""

    __module__ = "langgraph.serializer"

    def dumps_typed(self, value):
        return "msgpack", b""


class Journal:
    """A pool of pages whose records are kept in memory."""

    def __init__(self, prefix, monkeypatch):
        monkeypatch.setattr(pools, "FIRST_PAGES", 8)
        self.records = []
        self.pool = Pool([(prefix, True)], self.records.extend)

    def are_all_free(self):
        self.pool.recover_lost_pages()
        while self.pool.collect():
            pass
        return len(self.pool._free) == len(set(self.pool._free)) == sum(len(file.pages) for file in self.pool._files)

    def check(self, place):
        """Each operation has one begin and one end, none is recorded twice, and all pages are free again."""
        if not self.are_all_free():
            gc.collect()  # an operation that was interrupted may be in a cycle with a traceback
            assert self.are_all_free(), place
        ids = []
        for record in self.records:
            kinds = [line[0] for line in json.loads(record)]
            assert kinds.count(events.END) == 1, (place, kinds)
            assert kinds.count(events.BEGIN) <= 1, (place, kinds)
            ids += [line[1] for line in json.loads(record) if line[0] == events.BEGIN]
        assert len(ids) == len(set(ids)), place
        self.records.clear()


@pytest.fixture
def journal(tmp_path, monkeypatch):
    journal = Journal(str(tmp_path / "pages"), monkeypatch)
    monkeypatch.setattr(guard, "faults", type(guard.faults)())
    instrumentor = NothingInstrumentor()
    instrumentor.instrument()
    recorder.start(journal.pool.take)
    yield journal
    recorder.stop()
    instrumentor.uninstrument()
    journal.pool.remove()


# Within the constructor of a named tuple, which has no builtins, Python cannot import what it needs to give that warning.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_interrupted_at_every_point(journal, action, step):
    """The exception arrives, the operations end once, their pages are free again, and the context of the host program is restored."""
    action()
    next(interrupt_everywhere(action, step), None)  # Python 3.12 reports instructions only of code that was traced before
    count = 0
    for place, reached in interrupt_everywhere(action, step):
        count += 1
        assert reached, f"swallowed at {place}"
        assert not get_current(), place
        assert current_position.get() is None, place
        assert not running_tasks._lock._is_owned(), place
        journal.check(place)
    assert count * step > 20
    assert not guard.faults
    gc.collect()  # warns about interrupted coroutines here, and not in another test


def test_search_in_a_state():
    """The operation stays the current one if the search for the value that cannot be saved is interrupted."""
    details = StateDetails.of_call("save", SimpleNamespace(serde=Serializer()), {"checkpoint": {"channel_values": {"a": 1, "b": [2, 3]}}})
    position = (object(), 0, None)
    token = current_position.set(position)
    places = []
    for place, reached in interrupt_everywhere(details._find_unserializable):
        assert reached, f"swallowed at {place}"
        assert current_position.get() is position, place
        places.append(place)
    current_position.reset(token)
    assert any(place.startswith("_Search") for place in places)


def test_one_shot_handler(journal):
    """A handler that uninstalls itself before it raises, as some timeout libraries do, is recognized too."""

    def raise_once(*arguments):
        signal.signal(arguments[0], signal.SIG_IGN)
        raise_time_up(*arguments)

    arrivals = [(reached, journal.are_all_free()) for _, reached in interrupt_everywhere(save_in_a_block, step=20, function=raise_once)]
    assert all(reached for reached, _ in arrivals)


@pytest.mark.parametrize("module", [encoding, redact], ids=["encoding", "redact"])
def test_control_detects_swallowed_exceptions(journal, monkeypatch, module):
    """Control: if our code catches exceptions as usual, some vanish, and the test detects it."""
    monkeypatch.setattr(module, "raise_host_exception", lambda error: None)
    arrivals = ((reached, journal.are_all_free()) for _, reached in interrupt_everywhere(save_in_a_block))  # few points can tell
    assert any(not reached for reached, _ in arrivals)


def test_control_without_observation():
    """Control: without observation, every exception arrives."""
    assert all(reached for _, reached in interrupt_everywhere(call_patched_function))
