"""DBOS: the table of recorded steps is the oracle of what is recorded."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
import threading
from contextlib import contextmanager
from importlib.metadata import version

import pytest
import sqlalchemy
from dbos import DBOS, DBOSConfig, SetWorkflowID
from dbos._dbos import _get_dbos_instance
from dbos._error import DBOSStepNondeterminismError, DBOSUnexpectedStepError, DBOSWorkflowCancelledError
from dbos._serialization import Serializer
from opentelemetry import trace

import ckpt_observe
from ckpt_observe.instrument.dbos import DBOSInstrumentor
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries
CONTENT = "what the state contains"
FORMATS = {"py_pickle": "pickle", "portable_json": "json", "custom_serializer": "custom_serializer"}


class TestContract(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.dbos:DBOSInstrumentor"
    use = "from dbos._serialization import DBOSDefaultSerializer as s; assert s.deserialize(s.serialize([1])) == [1]"


def test_version():
    """The tests run with the version that the table names."""
    assert version("dbos") == "3.3.0"


@DBOS.step()
def double(number):
    return {"number": number * 2, "text": CONTENT + "é"}


@DBOS.step()
def fail():
    raise KeyError(CONTENT)


@DBOS.step()
def return_lock():
    return threading.Lock()


@DBOS.step()
async def wait_for(number):
    return number


@DBOS.workflow()
def child(number):
    return double(number)["number"]


@DBOS.workflow()
async def child_async(number):
    return await wait_for(number * 2)


@DBOS.workflow()
def everything(number):
    """Use every kind of call that DBOS records."""
    double(number)
    with pytest.raises(KeyError):
        fail()
    DBOS.set_event("progress", CONTENT)
    DBOS.sleep(0.001)
    child(number)
    return DBOS.start_workflow(child, number).get_result()


@DBOS.workflow()
async def everything_async(number):
    await DBOS.set_event_async("progress", CONTENT)
    await wait_for(number)
    handle = await DBOS.start_workflow_async(child_async, number)
    return await handle.get_result()


@DBOS.workflow()
def lose_lock():
    return_lock()


@pytest.fixture
def launch(recording, tmp_path):
    """A function that starts DBOS, observed, with a new SQLite database, and returns a connection to it."""
    instrumentor = DBOSInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    connections = []

    def start(**options):
        path = tmp_path / "steps.sqlite"
        config: DBOSConfig = {
            "name": "test-app",
            "system_database_url": f"sqlite:///{path}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
        DBOS(config={**config, **options})
        DBOS.launch()
        connections.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        return connections[0]

    yield start
    DBOS.destroy()
    for connection in connections:
        connection.close()
    instrumentor.uninstrument()


def rows_in(database):
    columns = "workflow_uuid, function_id, function_name, length(CAST(coalesce(output, error) AS BLOB)), serialization, error IS NOT NULL"
    return sorted(database.execute(f"SELECT {columns} FROM operation_outputs").fetchall())


def rows_of(operations):
    """The operations, in the form of the rows."""
    keys = (names.TASK_ID, names.STEP, names.NODE, names.SIZE_SERIALIZED, names.FORMAT)
    return sorted((*[attributes.get(key) for key in keys], attributes.get(names.REASON) == "error") for attributes in operations)


def translated(rows):
    return [(*row[:4], FORMATS.get(row[4]), bool(row[5])) for row in rows]


def appends_in(operations):
    return [attributes for attributes in operations if attributes[names.OPERATION] == "append"]


def call(database, **result):
    """Record a step directly, as DBOS does after it."""
    row = {"workflow_uuid": "w", "function_id": 9, "function_name": "step", "output": CONTENT, "error": None, "serialization": None}
    database.record_operation_result({**row, "started_at_epoch_ms": 0, "child_workflow_id": None, **result})


@contextmanager
def pragma(engine, setting):
    """Apply a setting of SQLite to every connection that is used."""

    def apply(connection, *_):
        connection.execute(f"PRAGMA {setting}")

    sqlalchemy.event.listen(engine, "checkout", apply)
    yield
    sqlalchemy.event.remove(engine, "checkout", apply)
    engine.dispose()


@pytest.mark.parametrize("workflow", [everything, everything_async], ids=["sync", "async"])
def test_rows_are_appends(launch, operations, workflow):
    """Every row is one append, with its workflow, step, function, size and format. First runs load nothing."""
    database = launch()
    with SetWorkflowID("w"):
        if workflow is everything:
            assert everything(3) == 6
        else:
            assert asyncio.run(everything_async(3)) == 6
    rows = rows_in(database)
    assert len(rows) >= 5
    assert rows_of(operations()) == translated(rows)
    assert {(attributes[names.OPERATION], attributes[names.SYSTEM], attributes[names.STORE]) for attributes in operations()} == {
        ("append", "dbos", "sqlite")
    }
    database.execute("DELETE FROM operation_outputs WHERE rowid = (SELECT min(rowid) FROM operation_outputs)")
    assert rows_of(operations()) != translated(rows_in(database)), "the comparison notices a missing row"


def test_replay_loads_what_was_recorded(launch, operations):
    """A fork copies the steps before its start, and loads each of them once; it appends the others."""
    database = launch()
    with SetWorkflowID("w"):
        everything(3)
    first = len(operations())
    fork = DBOS.fork_workflow("w", 3)
    assert fork.get_result() == 6
    copy, *rest = operations()[first:]
    assert (copy[names.OPERATION], copy[names.TASK_ID], copy[names.TARGET_TASK_ID]) == ("copy", "w", fork.workflow_id)
    loads = [attributes for attributes in rest if attributes[names.OPERATION] == "load"]
    rows = [row for row in translated(rows_in(database)) if row[0].startswith(fork.workflow_id)]
    assert rows_of(loads) == [row for row in rows if row[0] == fork.workflow_id and row[1] < 3]
    assert rows_of(appends_in(rest)) == [row for row in rows if row not in rows_of(loads)]


def test_dropped_lookups_have_no_children(launch, recording):
    """Spans of other instrumentations during a lookup that finds nothing belong to the enclosing span."""
    launch()
    parents = []
    instance = _get_dbos_instance()._sys_db
    original = instance.engine.begin

    this_thread = threading.get_ident()

    def begin():
        if threading.get_ident() == this_thread:  # and not a thread of DBOS
            parents.append(trace.get_current_span())
        return original()

    with ckpt_observe.task("agent"), pytest.MonkeyPatch.context() as patch:
        task = trace.get_current_span()
        patch.setattr(instance.engine, "begin", begin)
        with pytest.raises(AssertionError, match="does not exist"):
            instance.check_operation_execution("no such workflow", 1, "step")
    assert parents == [task]
    [load] = [span for span in recording.spans() if names.OPERATION in span.attributes]
    assert load.attributes[names.ERROR_CODE] == "not_found.checkpoint"


def test_value_that_cannot_be_serialized(launch, operations):
    """DBOS records nothing, so the failure is an append of its own: which workflow, which step, and why."""
    database = launch()
    with SetWorkflowID("w"), pytest.raises(TypeError, match="pickle"):
        lose_lock()
    assert rows_in(database) == []
    failure = operations()[0]
    assert (failure[names.OPERATION], failure[names.TASK_ID], failure[names.STEP]) == ("append", "w", 1)
    assert (failure[names.ERROR_CODE], failure[names.ERROR_PHASE]) == ("serialization.unsupported_type", "serialize")


def test_value_that_cannot_be_deserialized(launch, operations):
    """A recorded value that cannot be read any more is a failed load."""
    database = launch()
    with SetWorkflowID("w"):
        child(3)
    database.execute("UPDATE operation_outputs SET output = 'gASVbroken'")
    with pytest.raises(Exception):  # noqa: B017 - of pickle or base64
        DBOS.fork_workflow("w", 2).get_result()
    failure = operations()[-1]
    assert (failure[names.OPERATION], failure[names.ERROR_CODE]) == ("load", "serialization.malformed")
    assert failure[names.ERROR_PHASE] == "deserialize"


def test_serializer_defined_later(launch, operations):
    """A serializer that the program defines after it is observed gives the same rows, and its failures are seen."""

    class LateSerializer(Serializer):
        def serialize(self, data):
            if isinstance(data, dict) and data.get("number") == 8:
                raise RuntimeError("eight")
            return pickle.dumps(data).hex()

        def deserialize(self, serialized_data):
            return pickle.loads(bytes.fromhex(serialized_data))

    database = launch(serializer=LateSerializer())
    with SetWorkflowID("w"):
        assert child(3) == 6
    assert rows_of(operations()) == translated(rows_in(database))
    with SetWorkflowID("v"), pytest.raises(RuntimeError, match="eight"):
        child(4)
    failures = [attributes for attributes in operations() if attributes[names.OUTCOME] == "error"]
    assert [attributes[names.TASK_ID] for attributes in failures] == ["v"]


def test_locked_database_is_retried(launch, recording, operations):
    """DBOS retries until the lock is released: one append, whose phase says how often it was tried and why it failed."""
    database = launch()
    with SetWorkflowID("w"):
        child(3)
    instance = _get_dbos_instance()._sys_db
    database.execute("BEGIN EXCLUSIVE")

    this_thread = threading.get_ident()

    class Release(logging.Handler):
        def emit(self, record):  # also called by DBOS's own threads
            if record.thread == this_thread and "Retrying" in record.getMessage():
                database.execute("ROLLBACK")

    handler, logger = Release(), logging.getLogger("dbos")
    logger.addHandler(handler)
    level, logger.level = logger.level, logging.WARNING
    try:
        with pragma(instance.engine, "busy_timeout=20"):
            call(instance)
    finally:
        logger.removeHandler(handler)
        logger.level = level
    assert rows_of(operations()) == translated(rows_in(database))
    write = [span for span in recording.spans() if span.name == "checkpoint.write"][-1]
    assert write.attributes[names.PHASE_CALLS] == 2
    assert write.attributes[names.ERROR_CODE] == "conflict.locked"


def test_read_only_database(launch, operations, recording):
    """A database that cannot be written is reported as such, without the parameters of the statement."""
    launch()
    instance = _get_dbos_instance()._sys_db
    with pragma(instance.engine, "query_only=ON"), pytest.raises(sqlalchemy.exc.OperationalError, match="readonly") as raised:
        call(instance)
    assert CONTENT in str(raised.value), "SQLAlchemy quotes the value"
    [append] = operations()
    assert (append[names.ERROR_CODE], append[names.ERROR_TYPE]) == ("storage.read_only", "OperationalError")
    assert (append[names.ERROR_PHASE], append[names.ERROR_CAUSE]) == ("write", "sqlite3.OperationalError")


def test_errors_of_dbos(launch, operations):
    """Each error with which DBOS refuses to record or replay has its own code, and reaches the program."""
    launch()
    with SetWorkflowID("w"):
        child(3)
    instance = _get_dbos_instance()._sys_db
    with pytest.raises(DBOSStepNondeterminismError):
        call(instance, function_id=1, function_name="double")
    with pytest.raises(DBOSUnexpectedStepError):
        instance.check_operation_execution("w", 1, "renamed step")
    DBOS.delete_workflow("w")
    with SetWorkflowID("v"):
        child(3)
    with instance.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE workflow_status SET status = 'CANCELLED'")
    with pytest.raises(DBOSWorkflowCancelledError):
        instance.check_operation_execution("v", 1, "double")
    codes = [(attributes[names.OPERATION], attributes.get(names.ERROR_CODE)) for attributes in operations()]
    assert codes == [
        ("append", None),
        ("append", "conflict.exists"),
        ("load", "compatibility.changed_program"),
        ("delete", None),
        ("append", None),
        ("load", "cancelled.requested"),
    ]
    assert [attributes.get(names.WHOLE_TASK) for attributes in operations()] == [None, None, None, True, None, None]


def test_example(run_example):
    """The example appends two steps, copies one of them, loads it and appends the other again."""
    steps = [(attributes[names.OPERATION], attributes.get(names.NODE)) for attributes in run_example("dbos_workflow.py")]
    assert steps == [("append", "fetch"), ("append", "summarize"), ("copy", None), ("load", "fetch"), ("append", "summarize")]
