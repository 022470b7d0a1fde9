"""LangGraph databases in SQLite. `golden/langgraph.db` was written by LangGraph itself."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ckpt_observe import readers
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, CompatibilityError, ConflictError, DeadlineError, IntegrityError
from ckpt_observe.readers import Limits, encoded_values
from ckpt_observe.readers.contents import walk
from ckpt_observe.readers.sqlite_database import open_database

GOLDEN = Path(__file__).parent / "golden/langgraph.db"
SCHEMA = """
CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
    parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL,
    idx INTEGER NOT NULL, channel TEXT NOT NULL, type TEXT, value BLOB);
"""


def query(path, statement):
    """Read a database that no program has open. Other tests read it at the same time, so its log must not be created."""
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        return connection.execute(statement).fetchall()


def create(path, *rows, schema=SCHEMA):
    """Create a database with rows of thread, id, type and encoded checkpoint."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(schema)
        for thread, id, type_name, checkpoint in rows:
            values = (thread, "", id, None, type_name, checkpoint, b'{"step": 1}')
            connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    return path


def encode(**channels):
    return msgspec.msgpack.encode({"v": 1, "channel_values": channels})


def add_up(contents):
    return sum(entry.size for entry in contents.entries) + contents.other_size


def test_the_large_channel_comes_first():
    """Channels and other bytes are exactly the bytes of the column; so are threads, and steps."""
    contents = readers.read(GOLDEN)
    assert contents.format == "langgraph-sqlite"
    assert contents.entries[0].name == "document"
    [[expected]] = query(GOLDEN, "SELECT sum(length(checkpoint)) FROM checkpoints")
    assert add_up(contents) == contents.size == expected
    for by in ("thread", "step"):
        breakdown = contents.breakdown(by)
        assert sum(entry.size for entry in breakdown.entries) + breakdown.other_size == expected
    sizes = dict(query(GOLDEN, "SELECT thread_id, sum(length(checkpoint)) FROM checkpoints GROUP BY 1"))
    assert {entry.name: entry.size for entry in contents.breakdown("thread").entries} == sizes
    assert contents.stored_size == GOLDEN.stat().st_size


def test_what_is_stored_again_and_what_pruning_would_free():
    """The document is stored in each checkpoint after the input: all copies but the first are repetitions."""
    contents = readers.read(GOLDEN, task="large")
    document = contents.entries[0]
    assert document.details["repeated_size"] == document.size - document.details["largest_size"] > 0
    assert contents.repeated_size >= document.details["repeated_size"]
    total = "sum(length(checkpoint)) + sum(length(metadata))"
    [[everything]] = query(GOLDEN, f"SELECT {total} FROM checkpoints WHERE thread_id = 'large'")
    [[writes]] = query(GOLDEN, "SELECT sum(length(value)) FROM writes WHERE thread_id = 'large'")
    newest = "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 'large'"
    [[rest]] = query(GOLDEN, f"SELECT {total} FROM checkpoints WHERE checkpoint_id = ({newest})")
    assert contents.prunable_size == everything + writes - rest  # the newest has no pending writes


def test_history_of_a_thread():
    """Each checkpoint has its step, time, parent and, at depth 2, its channels with digests."""
    checkpoints = readers.read(GOLDEN, task="large", depth=2).breakdown("checkpoint").entries
    assert [entry.details["step"] for entry in checkpoints] == [2, 1, 0, -1]
    assert [entry.name for entry in checkpoints[1:]] == [entry.details["parent"] for entry in checkpoints[:-1]]
    digests = [{child.name: child.digest for child in entry.children}.get("document") for entry in checkpoints]
    assert len(set(digests[:3])) == 1
    assert digests[3] is None


@pytest.mark.parametrize("reference", ["latest~2", "step:0"])
def test_one_checkpoint(reference):
    """A reference selects a checkpoint. Objects are named by class, and not constructed."""
    contents = readers.read(GOLDEN, task="large", checkpoint=reference, depth=2)
    messages = next(entry for entry in contents.entries if entry.name == "messages")
    assert [child.type for child in messages.children] == ["langchain_core.messages.human.HumanMessage"]
    assert messages.items == 1
    assert add_up(contents) == contents.size
    assert contents.metadata["step"] == 0
    same = readers.read(GOLDEN, task="large", checkpoint=contents.metadata["id"], depth=2)
    assert same == contents
    at_that_time = readers.read(GOLDEN, task="large", checkpoint="at:" + contents.metadata["created"], depth=2)
    assert at_that_time == contents


def test_missing_thread_and_checkpoint():
    """Both are CheckpointNotFoundErrors."""
    for arguments in ({"task": "none"}, {"task": "none", "checkpoint": "latest"}, {"task": "large", "checkpoint": "step:99"}):
        with pytest.raises(CheckpointNotFoundError):
            readers.read(GOLDEN, **arguments)


def test_nothing_is_written(tmp_path):
    """Reading a database in WAL mode leaves no file behind, and works in a directory that nobody may write to."""
    shutil.copy(GOLDEN, tmp_path / "copy.db")
    before = (tmp_path / "copy.db").read_bytes()
    os.chmod(tmp_path, 0o500)
    try:
        readers.read(tmp_path / "copy.db")
    finally:
        os.chmod(tmp_path, 0o700)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]
    assert (tmp_path / "copy.db").read_bytes() == before


def test_a_database_in_use(tmp_path):
    """What a program has committed to the log is seen, although the log is not yet in the file."""
    path = create(tmp_path / "a.db", ("t", "1", "msgpack", encode(a="x")))
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO checkpoints VALUES ('t', '', '2', '1', 'msgpack', ?, '{}')", (encode(a="y" * 99),))
        writer.commit()
        contents = readers.read(path)
        assert contents.metadata["checkpoints"] == 2
        assert contents.entries[0].details["values"] == 2
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("INSERT INTO checkpoints VALUES ('t', '', '3', '2', 'msgpack', x'80', '{}')")
        with pytest.raises(ConflictError, match="locked"):
            readers.read(path, limits=Limits(seconds=0.01))


@pytest.fixture
def unused_database(tmp_path):
    """A database in WAL mode that no program has open: it has no log, and is read without a lock."""
    path = create(tmp_path / "a.db", ("t", "1", "msgpack", encode(a="x")))
    with closing(sqlite3.connect(path)) as program:
        program.execute("PRAGMA journal_mode = WAL")
    assert not Path(f"{path}-wal").exists()
    return path


def test_a_program_opens_the_database_while_it_is_read(unused_database):
    """That creates the log. The file is as it was, and so is what is read."""
    with closing(sqlite3.connect(unused_database)) as program, open_database(str(unused_database), Limits()) as connection:
        program.execute("INSERT INTO checkpoints SELECT thread_id, '', '2', '1', type, checkpoint, metadata FROM checkpoints")
        program.commit()
        assert Path(f"{unused_database}-wal").exists()
        assert connection.execute("SELECT count(*) FROM checkpoints").fetchall() == [(1,)]


def test_a_program_writes_to_the_file_while_it_is_read(unused_database):
    """What was read without a lock is not used, because it may be half of what the program wrote."""
    changed = pytest.raises(ConflictError, match="was changed")
    with changed, open_database(str(unused_database), Limits()), closing(sqlite3.connect(unused_database)) as program:
        program.execute("DELETE FROM checkpoints")
        program.commit()


def test_a_program_ends_while_its_database_is_read(tmp_path):
    """A database with a rollback journal is read with a lock, so that what is read is complete."""
    path = create(tmp_path / "a.db", ("t", "1", "msgpack", encode(a="x")))
    with closing(sqlite3.connect(path)) as program:
        program.execute("PRAGMA journal_mode = PERSIST")
        program.execute("DELETE FROM checkpoints")
        program.commit()
        with open_database(str(path), Limits()) as connection:
            os.unlink(f"{path}-journal")
            assert connection.execute("SELECT count(*) FROM checkpoints").fetchall() == [(0,)]


def test_checkpoints_that_are_not_decoded(tmp_path):
    """Encrypted, pickled and damaged checkpoints count as other bytes, with a warning. JSON of old versions is decoded."""
    text = b'{"channel_values": {"a": {"b": 1.5}}}'
    rows = [("t", "1", "msgpack+aes", b"s" * 50), ("t", "2", "pickle", b"\x80\x04N."), ("t", "3", "msgpack", b"\xdf\xff\xff\xff\xff")]
    contents = readers.read(create(tmp_path / "a.db", *rows, ("t", "4", "json", text)))
    assert contents.size == 50 + 4 + 5 + len(text) == add_up(contents)
    assert [(entry.name, entry.type, entry.size) for entry in contents.entries] == [("a", "dict", 10)]
    assert "3 checkpoints" in contents.warnings[0]


def test_damaged_text_hides_no_other_row(tmp_path):
    """Names and types that are not UTF-8 are shown with a replacement, and the other rows as they are."""
    path = create(tmp_path / "a.db", ("good", "1", "msgpack", encode(text="x" * 100)))
    with closing(sqlite3.connect(path)) as connection, connection:
        text = "CAST(x'ff' AS TEXT)"
        connection.execute(f"INSERT INTO checkpoints VALUES ({text}, '', {text}, {text}, {text}, x'80', {text})")
    contents = readers.read(path)
    assert [entry.name for entry in contents.breakdown("thread").entries] == ["good", "\ufffd"]
    assert readers.read(path, task="good", checkpoint="latest").entries[0].name == "text"
    add_up(contents)


def test_deep_nesting_is_not_followed(tmp_path):
    """A value nested deeper than the call stack is not decoded, at any depth."""
    deep = b"\x82\xa1v\x01\xaechannel_values\x81\xa1a" + b"\x91" * 100_000 + b"\xc0"
    path = create(tmp_path / "a.db", ("t", "1", "msgpack", deep))
    assert readers.read(path).other_size == len(deep)
    assert readers.read(path, task="t", checkpoint="1", depth=10**6).warnings


def test_the_time_limit_ends_decoding(tmp_path, monkeypatch):
    """When the time is over, the rest counts as other bytes. If not even the lengths are known, it is a DeadlineError."""
    path = create(tmp_path / "a.db", *(("t", str(id), "msgpack", encode(a="x" * 100)) for id in range(2000)))
    with pytest.raises(DeadlineError, match="seconds="):
        readers.read(path, limits=Limits(seconds=-1.0))
    original = readers.langgraph_sqlite.ThreadTotals.add

    def add_then_interrupt(totals, checkpoint):
        original(totals, checkpoint)
        error = sqlite3.OperationalError("interrupted")
        error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
        raise error

    monkeypatch.setattr(readers.langgraph_sqlite.ThreadTotals, "add", add_then_interrupt)
    contents = readers.read(path)
    assert add_up(contents) == contents.size
    assert "newest 1 of 2000" in contents.warnings[0]


HOSTILE_SCHEMAS = {
    "a view in place of the table": SCHEMA.replace("TABLE checkpoints", "TABLE real")
    + "CREATE VIEW checkpoints AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"
    " SELECT x AS thread_id, '' AS checkpoint_ns, x AS checkpoint_id, '' AS parent_checkpoint_id, '' AS type, x AS checkpoint,"
    " '' AS metadata FROM r;",
    "a generated column": SCHEMA.replace("metadata BLOB,", "metadata BLOB AS (zeroblob(100000000)),"),
    "a virtual table": "CREATE VIRTUAL TABLE checkpoints USING fts5(thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,"
    " checkpoint, metadata);",
    "no table": "CREATE TABLE other (a);",
}


@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS.values(), ids=HOSTILE_SCHEMAS)
def test_hostile_schemas_are_not_read(tmp_path, schema):
    """Only plain tables are read, because SQL in the file would be executed otherwise."""
    with pytest.raises(CompatibilityError):
        readers.read(create(tmp_path / "a.db", schema=schema))


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_log_that_is_no_file(tmp_path, suffix):
    """A FIFO with the name of a log is refused: SQLite would wait for somebody to write to it."""
    path = shutil.copy(GOLDEN, tmp_path)
    os.mkfifo(f"{path}{suffix}")
    other_end = os.open(f"{path}{suffix}", os.O_RDWR)  # so that this test fails, and does not hang, if SQLite opens it
    try:
        with pytest.raises(CheckpointError, match=f"{suffix} is not a regular file"):
            readers.read(path)
    finally:
        os.close(other_end)


def test_control_a_plain_schema_is_read(tmp_path):
    """The control of the test above: without the hostile part the database is read."""
    assert readers.read(create(tmp_path / "a.db", schema=SCHEMA)).size == 0


def test_a_damaged_database(tmp_path):
    """A file that only starts like a database is an IntegrityError."""
    data = GOLDEN.read_bytes()
    for name, content in {"short": data[:50], "half": data[: len(data) // 2], "zeros": data[:100] + bytes(len(data))}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises((IntegrityError, CompatibilityError)):
            readers.read(tmp_path / name)


@pytest.mark.parametrize("opens_file", [False, True], ids=["reader", "control"])
def test_locks_of_this_process_survive(tmp_path, opens_file):
    """Reading a database that this process has open keeps its locks. The control opens and closes the file, which drops them."""
    path = create(tmp_path / "a.db")
    program = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if opens_file:
            path.read_bytes()
        readers.read(path)
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ("database is locked" in result.stderr) is not opens_file


@pytest.mark.parametrize("type_name", ["msgpack", "json"])
def test_containers_with_many_items(tmp_path, type_name):
    """The items of a large container are counted and not shown. Commas in text do not count as items. A channel beside it is shown."""
    encoder = getattr(msgspec, type_name)
    state = {"large": [1] * 200_000, "small": {"text": "a,b" * 100_000, "list": [1, 2]}}
    create(tmp_path / "a.db", ("t", "1", type_name, encoder.encode({"channel_values": state})))
    contents = readers.read(tmp_path / "a.db", task="t", checkpoint="1", depth=5)
    assert add_up(contents) == contents.size
    small, large = sorted(contents.entries, key=lambda entry: entry.name, reverse=True)
    assert (large.type, large.items, large.children) == ("list", 200_000 if type_name == "msgpack" else None, ())
    assert {child.name: (child.type, child.items) for child in small.children} == {"text": ("str", None), "list": ("list", 2)}
    assert "100,000 in one container" in contents.warnings[0]


def test_values_of_many_checkpoints(tmp_path, monkeypatch):
    """The nested values of all checkpoints of a thread together are limited, not only those of each."""
    monkeypatch.setattr(encoded_values, "_MAX_VALUES", 100)
    create(tmp_path / "a.db", *(("t", f"{number:03}", "msgpack", encode(x=[1] * 9)) for number in range(50)))
    contents = readers.read(tmp_path / "a.db", task="t", depth=5)
    nested = [entry for path, entry in walk(contents.breakdown("checkpoint").entries) if len(path) == 3]
    assert len(nested) == 99
    assert "more than 100" in contents.warnings[0]
    assert readers.read(tmp_path / "a.db", task="t", depth=2).warnings == ()


@pytest.mark.parametrize("count", [5, 4_000_000_000])
def test_extension_that_claims_items(tmp_path, count):
    """An extension is only bytes for msgpack: a list inside that claims more items than it has is damage."""
    inside = msgspec.msgpack.encode(["module", "name", 0])[:-1] + b"\xdd" + count.to_bytes(4, "big") + b"\x01"
    create(tmp_path / "a.db", ("t", "1", "msgpack", encode(x=msgspec.msgpack.Ext(0, inside))))
    [entry] = readers.read(tmp_path / "a.db", task="t", checkpoint="1").entries
    assert (entry.type, entry.items) == ("msgpack extension 0", None)


def test_a_checkpoint_with_too_many_channels(tmp_path):
    """Its channels are other bytes, with a warning that says why; those of the checkpoint beside it are shown."""
    many = encode(**{str(number): 0 for number in range(100_001)})
    contents = readers.read(create(tmp_path / "a.db", ("t", "1", "msgpack", many), ("t", "2", "msgpack", encode(x=1))))
    assert [entry.name for entry in contents.entries] == ["x"]
    assert add_up(contents) == contents.size
    assert "more than 100,000 channels" in contents.warnings[0]
