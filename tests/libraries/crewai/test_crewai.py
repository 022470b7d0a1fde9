"""CrewAI: its databases and files are the oracle of what is recorded."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from concurrent.futures import Executor, Future
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import pytest
from crewai.events.event_bus import crewai_event_bus
from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import SQLiteFlowPersistence, persist
from crewai.flow.persistence import sqlite as flow_sqlite
from crewai.flow.persistence.base import FlowPersistence
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.state.provider import sqlite_provider
from crewai.state.provider.core import BaseProvider
from crewai.state.provider.json_provider import JsonProvider
from crewai.state.provider.sqlite_provider import SqliteProvider
from crewai.state.runtime import RuntimeState
from crewai_core import lock_store
from pydantic import BaseModel, ValidationError, model_serializer

from ckpt_observe.instrument.crewai import CrewAIInstrumentor
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]
CONTENT = "what the state contains"


class TestContract(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.crewai:CrewAIInstrumentor"
    use = """
import os, tempfile
from crewai.flow.persistence import SQLiteFlowPersistence
from crewai.state.provider.json_provider import JsonProvider
with tempfile.TemporaryDirectory() as directory:
    persistence = SQLiteFlowPersistence(os.path.join(directory, "flows.db"))
    persistence.save_state("id", "method", {"a": 1})
    assert persistence.load_state("id") == {"a": 1}
    assert JsonProvider().from_checkpoint(JsonProvider().checkpoint("{}", directory)) == "{}"
"""


def test_version():
    """The tests run with the version that the table names."""
    assert version("crewai") == "1.15.30"


@pytest.fixture(autouse=True)
def instrumented(recording, monkeypatch):
    instrumentor = CrewAIInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    if sqlite3.sqlite_version_info < (3, 45):  # SqliteProvider needs jsonb()
        monkeypatch.setattr(sqlite_provider, "_INSERT", sqlite_provider._INSERT.replace("jsonb(?)", "?"))
    crewai_event_bus.reset_runtime_state()  # of flows that an earlier test created and did not run
    yield
    crewai_event_bus.flush()
    instrumentor.uninstrument()


def query(path, statement):
    with sqlite3.connect(path) as connection:
        return connection.execute(statement).fetchall()


def select(operations, *columns, operation="save"):
    return [tuple(attributes.get(column) for column in columns) for attributes in operations if attributes[names.OPERATION] == operation]


@pytest.fixture
def flow_database(tmp_path):
    return tmp_path / "flows.db"


@pytest.fixture
def persistence(flow_database):
    return SQLiteFlowPersistence(str(flow_database))


def create_flow(persistence, **options):
    """A flow of two methods, of which each is saved."""

    @persist(persistence)
    class Report(Flow):
        @start()
        def collect(self):
            self.state["pages"] = [CONTENT, *self.state.get("pages", ())]

        @listen(collect)
        async def write(self):
            return len(self.state["pages"])

    return Report(suppress_flow_events=True, **options)


# The states of flows


def test_rows_are_saves(persistence, flow_database, operations):
    """Each row of a flow is one save by the method that it names, and a resumed flow loads once."""
    flow = create_flow(persistence)
    assert flow.kickoff() == 1
    assert create_flow(persistence).kickoff(inputs={"id": flow.flow_id}) == 2
    statement = "SELECT flow_uuid, method_name, length(CAST(state_json AS BLOB)) FROM flow_states ORDER BY id"
    columns = names.TASK_ID, names.NODE, names.SIZE_SERIALIZED
    rows = query(flow_database, statement)
    assert select(operations(), *columns) == rows
    assert len(rows) == 4
    loads = select(operations(), names.TASK_ID, names.STATE_KEYS, names.SIZE_SERIALIZED, operation="load")
    assert loads == [(flow.flow_id, 2, rows[1][2])]
    query(flow_database, "DELETE FROM flow_states WHERE id = 2")
    assert select(operations(), *columns) != query(flow_database, statement), "the comparison notices a missing row"
    for attributes in operations():
        assert (attributes[names.SYSTEM], attributes[names.STORE], attributes[names.LOCATION]) == ("crewai", "sqlite", str(flow_database))


def test_phases(persistence, recording):
    """A save serializes, waits for the lock between processes, and writes."""
    persistence.save_state("id", "method", {"a": CONTENT})
    phases = [span for span in recording.spans() if names.PHASE in span.attributes]
    assert sorted(span.attributes[names.PHASE] for span in phases) == ["serialize", "wait", "write"]


def test_state_that_does_not_exist(persistence, operations):
    """Loading a state that was never saved succeeds and says that nothing was there."""
    assert persistence.load_state("id") is None
    assert select(operations(), names.EXISTS, names.OUTCOME, operation="load") == [(False, "ok")]


def test_pending_feedback(persistence, flow_database, operations):
    """A pause for a human is one save, although it writes two rows; resuming loads and deletes it."""
    context = PendingFeedbackContext(
        flow_id="id",
        flow_class="Report",
        method_name="ask",
        method_output=CONTENT,
        message=CONTENT,
        emit=None,
        default_outcome=None,
        llm=None,
    )
    persistence.save_pending_feedback("id", context, {"a": CONTENT})
    assert persistence.load_pending_feedback("id")[0] == {"a": CONTENT}
    persistence.clear_pending_feedback("id")
    assert persistence.load_pending_feedback("id") is None
    assert [attributes[names.OPERATION] for attributes in operations()] == ["save", "load", "delete", "load"]
    assert select(operations(), names.NODE, names.REASON) == [("ask", "pending_feedback")]
    assert len(query(flow_database, "SELECT * FROM flow_states")) == 1


def test_persistence_defined_later(operations):
    """A persistence that the program defines after it is observed: one save each, also if a method calls another one."""

    class MemoryPersistence(FlowPersistence):
        states: ClassVar[dict] = {}

        def init_db(self):
            pass

        def save_state(self, *args, **kwargs):
            flow_uuid, _, state = (*args, *kwargs.values())
            self.states[flow_uuid] = dict(state)

        def load_state(self, flow_uuid):
            return self.states.get(flow_uuid)

    class LoggingPersistence(MemoryPersistence):
        def save_state(self, flow_uuid, method_name, state_data):
            super().save_state(flow_uuid, method_name, state_data)

    persistence = LoggingPersistence()
    flow = create_flow(persistence)
    assert flow.kickoff() == 1
    assert persistence.states[flow.flow_id]["pages"] == [CONTENT]
    saves = select(operations(), names.TASK_ID, names.NODE, names.STORE, names.SAVER)
    saver = LoggingPersistence.__qualname__
    assert saves == [(flow.flow_id, "collect", "memory", saver), (flow.flow_id, "write", "memory", saver)]


@pytest.mark.parametrize("state", [{("a", "tuple"): 1}, ["no", "dict"]], ids=["key", "type"])
def test_state_that_cannot_be_serialized(persistence, flow_database, operations, state):
    """The error is classified, and reaches the program unchanged. A flow hides it in a RuntimeError."""
    with pytest.raises((TypeError, ValueError)) as raised:
        persistence.save_state("id", "method", state)
    assert select(operations(), names.ERROR_CODE, names.ERROR_TYPE) == [("serialization.unsupported_type", type(raised.value).__name__)]
    assert query(flow_database, "SELECT * FROM flow_states") == []


def test_flow_whose_state_cannot_be_serialized(persistence, operations):
    """CrewAI raises a RuntimeError that does not say what happened; the save does."""
    flow = create_flow(persistence)
    flow.state["circle"] = circle = {}
    circle["circle"] = circle
    with pytest.raises(Exception) as raised:
        flow.kickoff()
    assert isinstance(raised.value, RuntimeError | ValueError)
    assert select(operations(), names.NODE, names.ERROR_CODE) == [("collect", "serialization.unsupported_type")]


def test_locked_database(persistence, flow_database, operations, monkeypatch):
    """Another connection holds the database."""
    monkeypatch.setattr(flow_sqlite, "_SQLITE_BUSY_TIMEOUT_SECONDS", 0.05)
    other = sqlite3.connect(flow_database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        persistence.save_state("id", "method", {})
    other.close()
    assert select(operations(), names.ERROR_CODE, names.ERROR_PHASE, names.ERROR_RETRYABLE) == [("conflict.locked", "write", True)]


def test_lock_between_processes_is_held(persistence, operations, monkeypatch):
    """Another process holds CrewAI's lock until the timeout."""
    with lock_store.lock(persistence._lock_name):
        monkeypatch.setattr(lock_store.lock.__wrapped__, "__kwdefaults__", {"timeout": 0.05})
        with pytest.raises(lock_store.portalocker.exceptions.LockException):
            persistence.save_state("id", "method", {})
    assert select(operations(), names.ERROR_CODE, names.ERROR_PHASE) == [("conflict.locked", "wait")]


def test_read_only_database(tmp_path, operations):
    """A database that cannot be written."""
    path = tmp_path / "flows.db"
    SQLiteFlowPersistence(str(path))
    persistence = SQLiteFlowPersistence(str(path))
    persistence.db_path = f"file:{path}?mode=ro"
    with pytest.MonkeyPatch.context() as patch:
        connect = sqlite3.connect
        patch.setattr(flow_sqlite.sqlite3, "connect", lambda path, **options: connect(path, uri=True, **options))
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            persistence.save_state("id", "method", {})
    assert select(operations(), names.ERROR_CODE) == [("storage.read_only",)]


def test_corrupt_row(persistence, flow_database, operations):
    """A row that was cut off cannot be decoded."""
    persistence.save_state("id", "method", {"a": CONTENT})
    query(flow_database, "UPDATE flow_states SET state_json = substr(state_json, 1, 12)")
    with pytest.raises(json.JSONDecodeError):
        persistence.load_state("id")
    assert select(operations(), names.ERROR_CODE, operation="load") == [("serialization.malformed",)]


# Checkpoints


class State(BaseModel):
    id: str = ""
    text: str = CONTENT + " é"


class Chapter(Flow[State]):
    @start()
    def draft(self):
        return 1

    @listen(draft)
    def review(self):
        return 2


@pytest.fixture(params=[JsonProvider, SqliteProvider])
def provider(request):
    return request.param()


@pytest.fixture
def location(provider, tmp_path):
    return str(tmp_path / ("checkpoints.db" if isinstance(provider, SqliteProvider) else "checkpoints"))


def stored_checkpoints(provider, location):
    """Id, id of the parent, and size of each checkpoint, the oldest first."""
    if isinstance(provider, SqliteProvider):
        return query(location, "SELECT id, parent_id, length(CAST(data AS BLOB)) FROM checkpoints ORDER BY rowid")
    files = sorted(Path(location).rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    stems = [(*path.stem.split("_p-"), path.stat().st_size) for path in files]
    return [(checkpoint_id, None if parent == "none" else parent, size) for checkpoint_id, parent, size in stems]


class InlineExecutor(Executor):
    """Runs event handlers in the thread that emits the event.

    In its own threads, CrewAI serializes the record of events while the flow adds to it, and sometimes fails.
    """

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def create_chapter(provider, location, **options):
    """A flow that makes a checkpoint after each of its two methods."""
    return Chapter(checkpoint=CheckpointConfig(location=location, provider=provider, on_events=["method_execution_finished"], **options))


def run_with_checkpoints(flow):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crewai_event_bus, "_sync_executor", InlineExecutor())
        assert flow.kickoff() == 2
        crewai_event_bus.flush()
    return flow


def test_automatic_checkpoints(provider, location, operations, recording):
    """Each checkpoint in the store is one save, with id, parent, size, event and method. The provider's call is its phase."""
    flow = run_with_checkpoints(create_chapter(provider, location))
    saves = select(operations(), names.ID, names.PARENT_ID, names.SIZE_SERIALIZED)
    stored = stored_checkpoints(provider, location)
    assert saves == stored
    assert len(stored) == 2
    assert stored[1][1] == stored[0][0], "the first is the parent of the second"
    described = select(operations(), names.TASK_ID, names.REASON, names.NODE, names.SAVER)
    event = "method_execution_finished"
    assert described == [(flow.flow_id, event, method, type(provider).__name__) for method in ("draft", "review")]
    if isinstance(provider, JsonProvider):
        assert select(operations(), names.SIZE_STORED) == select(operations(), names.SIZE_SERIALIZED)
    phases = [span.name for span in recording.spans() if names.PHASE in span.attributes]
    assert phases[:2] == phases[2:] and set(phases) >= {"checkpoint.serialize", "checkpoint.write"}


def test_each_flow_is_a_task(tmp_path, operations):
    """CrewAI's checkpoint contains a flow that was created before, too; the task is the flow that it is made for."""
    flows = [create_chapter(JsonProvider(), str(tmp_path / str(number))) for number in range(2)]
    run_with_checkpoints(flows[1])
    [checkpoint, _] = sorted((tmp_path / "1").rglob("*.json"))
    assert len(json.loads(checkpoint.read_text())["entities"]) == 2
    assert select(operations(), names.TASK_ID) == [(flows[1].flow_id,)] * 2


def test_pruned_checkpoints(provider, location, operations):
    """CrewAI prunes after each save; the count is that of the removed checkpoints."""
    run_with_checkpoints(create_chapter(provider, location, max_checkpoints=1))
    assert len(stored_checkpoints(provider, location)) == 1
    prunes = select(operations(), names.COUNT, names.RETENTION, operation="prune")
    assert sum(count for count, _ in prunes) == 1
    assert {is_retention for _, is_retention in prunes} == {True}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_save_and_restore(provider, location, operations, is_async):
    """A state that is saved and restored is one save and one load of the same checkpoint, which has the same task."""

    def run(call, method, *arguments):
        return asyncio.run(getattr(call, f"a{method}")(*arguments)) if is_async else getattr(call, method)(*arguments)

    flow = Chapter()
    flow.kickoff()
    state = RuntimeState([flow])
    state._provider = provider
    saved_at = run(state, "checkpoint", location)
    restored = run(RuntimeState, "from_checkpoint", CheckpointConfig(restore_from=saved_at))
    assert restored.root[0].checkpoint_state["id"] == flow.flow_id
    [(checkpoint_id, parent, size)] = stored_checkpoints(provider, location)
    columns = names.ID, names.PARENT_ID, names.SIZE_SERIALIZED, names.TASK_ID, names.LOCATION
    assert select(operations(), *columns) == [(checkpoint_id, parent, size, flow.flow_id, location)]
    [load] = select(operations(), names.ID, names.SIZE_SERIALIZED, names.TASK_ID, names.SAVER, operation="load")
    assert load == (checkpoint_id, size, flow.flow_id, type(provider).__name__)


def test_provider_on_its_own(provider, location, operations):
    """A provider that the program uses itself gives operations, too."""
    text = json.dumps({"text": CONTENT + " é"}, ensure_ascii=False, separators=(",", ":"))
    saved_at = provider.checkpoint(text, location, parent_id="p", branch="side")
    assert json.loads(provider.from_checkpoint(saved_at)) == json.loads(text)
    assert provider.prune(location, 0, branch="side") == 1
    size = len(text.encode())
    checkpoint = provider.extract_id(saved_at)
    assert select(operations(), names.ID, names.PARENT_ID, names.NAMESPACE, names.SIZE_SERIALIZED) == [(checkpoint, "p", "side", size)]
    assert select(operations(), names.ID, names.SIZE_SERIALIZED, operation="load") == [(checkpoint, size)]
    assert select(operations(), names.COUNT, names.NAMESPACE, operation="prune") == [(1, "side")]


def test_provider_defined_later(tmp_path, operations):
    """A provider that the program defines after it is observed, and that hands on to another one: one save."""

    class Mirror(BaseProvider):
        def checkpoint(self, data, location, **options):
            JsonProvider().checkpoint(data, location + "/copy", **options)
            return JsonProvider().checkpoint(data, location, **options)

        async def acheckpoint(self, data, location, **options):
            return self.checkpoint(data, location, **options)

        def prune(self, location, max_keep, *, branch="main"):
            return 0

        def extract_id(self, location):
            return JsonProvider().extract_id(location)

        def from_checkpoint(self, location):
            return Path(location).read_text()

        async def afrom_checkpoint(self, location):
            return self.from_checkpoint(location)

    saved_at = asyncio.run(Mirror().acheckpoint("{}", str(tmp_path / "c")))
    assert asyncio.run(Mirror().afrom_checkpoint(saved_at)) == "{}"
    assert [attributes[names.OPERATION] for attributes in operations()] == ["save", "load"]
    assert {attributes[names.ID] for attributes in operations()} == {JsonProvider().extract_id(saved_at)}
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_automatic_checkpoint_that_fails(tmp_path, operations):
    """CrewAI only logs the failure; here it is a failed save."""
    (tmp_path / "file").write_text("")
    run_with_checkpoints(create_chapter(JsonProvider(), str(tmp_path / "file" / "checkpoints")))
    codes = select(operations(), names.NODE, names.ERROR_CODE, names.ERROR_PHASE)
    assert codes == [("draft", "configuration.invalid", "write"), ("review", "configuration.invalid", "write")]


def test_checkpoint_that_cannot_be_serialized(tmp_path, operations):
    """The failure is before the provider is called, and is seen."""

    class Broken(Chapter):
        pass

    flow = Broken()
    flow.kickoff()
    flow._state = {"id": "x", "value": object()}
    state = RuntimeState([flow])
    with pytest.raises(Exception) as raised:
        state.checkpoint(str(tmp_path))
    assert select(operations(), names.ERROR_CODE, names.ERROR_TYPE) == [("serialization.unsupported_type", type(raised.value).__name__)]
    assert list(tmp_path.rglob("*.json")) == []


def test_checkpoint_that_changes_while_it_is_serialized(tmp_path, operations, monkeypatch):
    """Pydantic panics, which no `except Exception` of the program catches; a retry can succeed."""
    flow = Chapter()
    flow.kickoff()
    entity = {"a": 1}

    class Changing(BaseModel):
        @model_serializer
        def change(self):
            entity[len(entity)] = 1
            return {}

    entity["b"] = Changing()
    flow.checkpoint_state = entity
    monkeypatch.setattr("crewai.state.runtime._prepare_entities", lambda root: None)
    with pytest.raises(BaseException, match="changed size") as raised:
        RuntimeState([flow]).checkpoint(str(tmp_path))
    assert type(raised.value).__name__ == "PanicException"
    assert select(operations(), names.ERROR_CODE, names.ERROR_RETRYABLE) == [("serialization.concurrent_change", True)]


@pytest.mark.parametrize("keep", [0.5, 0.0], ids=["truncated", "empty"])
def test_damaged_checkpoint(tmp_path, operations, keep):
    """A damaged file is malformed. Pydantic quotes the input in its message, which must not be recorded."""
    flow = Chapter()
    flow.kickoff()
    path = Path(RuntimeState([flow]).checkpoint(str(tmp_path)))
    path.write_text(path.read_text()[: int(path.stat().st_size * keep)])
    with pytest.raises(ValidationError):
        RuntimeState.from_checkpoint(CheckpointConfig(restore_from=str(path)))
    path.write_text(json.dumps({"entities": CONTENT}))
    with pytest.raises(ValidationError, match=CONTENT):
        RuntimeState.from_checkpoint(CheckpointConfig(restore_from=str(path)))
    assert select(operations(), names.ERROR_CODE, operation="load") == [("serialization.malformed",)] * 2


def test_checkpoint_that_does_not_exist(tmp_path, operations):
    """A missing file, and a missing row."""
    saved_at = SqliteProvider().checkpoint("{}", str(tmp_path / "c.db"))
    for place in (str(tmp_path / "missing.json"), saved_at + "x"):
        with pytest.raises((OSError, ValueError)):
            RuntimeState.from_checkpoint(CheckpointConfig(restore_from=place))
    codes = select(operations(), names.ERROR_CODE, names.ERROR_PHASE, operation="load")
    assert codes == [("not_found.path", "read"), ("not_found.checkpoint", "read")]


@pytest.mark.skipif(sqlite3.sqlite_version_info >= (3, 45), reason="this SQLite has jsonb()")
def test_sqlite_without_jsonb(tmp_path, operations, monkeypatch):
    """SqliteProvider needs SQLite 3.45. With an older one every save fails, which CrewAI only logs."""
    monkeypatch.setattr(sqlite_provider, "_INSERT", sqlite_provider._INSERT[: sqlite_provider._INSERT.rindex("?")] + "jsonb(?))")
    run_with_checkpoints(create_chapter(SqliteProvider(), str(tmp_path / "c.db")))
    assert {code for (code,) in select(operations(), names.ERROR_CODE)} == {"configuration.invalid"}


def test_example(run_example):
    """The example saves after each of two methods, loads, and saves twice again."""
    steps = [(attributes[names.OPERATION], attributes.get(names.NODE)) for attributes in run_example("crewai_flow.py")]
    saves = [("save", "collect"), ("save", "write")]
    assert steps == [*saves, ("load", None), *saves]
