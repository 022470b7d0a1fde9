"""Orbax: the checkpoint directory is the oracle of what is recorded."""

from __future__ import annotations

import errno
import gc
import json
import threading
import time

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.checkpointers import async_checkpointer

from ckpt_observe.instrument.orbax import OrbaxInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]
STATE = {"weights": jnp.arange(3000, dtype=jnp.float32), "layer": {"bias": jnp.ones((4, 4)), "step": 3}}


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = OrbaxInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()
    gc.collect()  # coroutines that Orbax abandons after an error warn when they are collected; here the warning is ignored


def create_manager(directory, **options):
    return ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(**options))


def save(manager, step, state=STATE, **arguments):
    return manager.save(step, args=ocp.args.StandardSave(state), **arguments)


def restore(directory, step=0, state=STATE):
    """Restore and return the exception, if any."""
    try:
        create_manager(directory).restore(step, args=ocp.args.StandardRestore(state))
    except Exception as error:
        return error
    return None


def directory_size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def phases(recording):
    return {span.attributes[names.PHASE] for span in recording.spans() if names.PHASE in span.attributes}


@pytest.fixture
def saved(tmp_path):
    """A directory with the checkpoint of step 0."""
    with create_manager(tmp_path / "run") as manager:
        save(manager, 0)
    return tmp_path / "run"


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_each_checkpoint_is_one_save_with_the_size_of_its_directory(recording, operations, tmp_path, is_async):
    """The sizes add up to the bytes on disk, and the restore is one operation with the same id."""
    with create_manager(tmp_path, enable_async_checkpointing=is_async) as manager:
        assert [save(manager, step) for step in (0, 1)] == [True, True]
        manager.wait_until_finished()
        manager.restore(1, args=ocp.args.StandardRestore(STATE))
    *saves, loaded = operations()
    assert [(each[names.OPERATION], each[names.STEP]) for each in operations()] == [("save", 0), ("save", 1), ("restore", 1)]
    for each in saves:
        directory = tmp_path / str(each[names.STEP])
        assert (each[names.ID], each[names.LOCATION], each[names.SAVER]) == (str(directory), str(tmp_path), "CheckpointManager")
        assert each[names.SIZE_STORED] == directory_size(directory)
        assert (names.ASYNC_DURABLE in each) is is_async
    assert loaded[names.ID] == saves[1][names.ID]
    assert {"read", "write", "commit", "stage"} <= phases(recording) if is_async else {"read", "write"} <= phases(recording)


def test_skipped_steps_produce_no_span(recording, operations, tmp_path):
    """A manager is called at every step. Of 1,001 calls, one saves."""
    with create_manager(tmp_path, save_interval_steps=5000) as manager:
        assert sum(save(manager, step) for step in range(1001)) == 1
    assert [(each[names.OPERATION], each[names.STEP]) for each in operations()] == [("save", 0)]
    roots = [span for span in recording.spans() if not span.parent_span_id]
    assert len(roots) == 1


def test_checkpointers(operations, tmp_path):
    """A checkpointer that the program uses itself is observed, too, and its subclasses are one operation."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", STATE)
        checkpointer.wait_until_finished()
        checkpointer.restore(tmp_path / "a", STATE)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "b", args=ocp.args.StandardSave(STATE))
    assert [(each[names.OPERATION], each[names.ID]) for each in operations()] == [
        ("save", str(tmp_path / "a")),
        ("restore", str(tmp_path / "a")),
        ("save", str(tmp_path / "b")),
    ]
    assert [each[names.SIZE_STORED] for each in operations()][::2] == [directory_size(tmp_path / name) for name in "ab"]


@pytest.fixture
def gate(monkeypatch):
    """Saves wait for the gate before they commit, and fail with its error, if it has one."""
    gate = threading.Event()
    gate.error = None
    finalize = async_checkpointer._on_commit_callback

    def wait(*args, **kwargs):
        assert gate.wait(60)
        if gate.error is not None:
            raise gate.error
        return finalize(*args, **kwargs)

    monkeypatch.setattr(async_checkpointer, "_on_commit_callback", wait)
    return gate


def test_async_save_is_blocked_until_copied_and_durable_after_the_gate(operations, tmp_path, gate):
    """The caller is blocked within its own call, and not while the commit waits; the checkpoint is durable after the gate opened."""
    with create_manager(tmp_path) as manager:
        before = time.perf_counter()
        assert save(manager, 0)
        returned = time.perf_counter()
        assert operations() == []
        assert not (tmp_path / "0").exists()
        opened = time.perf_counter()
        gate.set()
    [each] = operations()
    assert 0 < each[names.ASYNC_BLOCKED] <= returned - before
    assert each[names.ASYNC_DURABLE] - each[names.ASYNC_RELEASED] >= opened - returned
    assert each[names.SIZE_STORED] == directory_size(tmp_path / "0")


def test_late_error_is_on_its_own_save(operations, tmp_path, gate):
    """The call returned. The error of the thread is on that save; the next one, which raises it, did not begin and is skipped."""
    manager = create_manager(tmp_path)
    assert save(manager, 0)
    gate.error = OSError(errno.ENOSPC, "full")
    gate.set()
    with pytest.raises(OSError, match="full"):
        save(manager, 1)
    gate.error = None
    assert save(manager, 2)
    manager.close()
    first, second, third = operations()
    assert (first[names.STEP], first[names.ERROR_CODE], first[names.ERROR_PHASE]) == (0, "storage.no_space", "commit")
    assert (second[names.STEP], second[names.OUTCOME]) == (1, "skipped")
    assert (third[names.STEP], third[names.OUTCOME]) == (2, "ok")


DAMAGES = {"empty": lambda data: b"", "half": lambda data: data[: len(data) // 2], "garbage": lambda data: b"\xa5" * len(data)}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["manifest.ocdbt", "_METADATA", "array_metadatas/process_0", "d/*", "ocdbt.process_0/d/*"])
def test_damaged_file(operations, saved, file, damage):
    """Whatever is damaged, the restore names it while reading, and never as unknown. Orbax does not read every file."""
    path = max((saved / "0" / "default").glob(file), key=lambda path: path.stat().st_size)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    error = restore(saved)
    each = operations()[1]
    assert error is not None
    expected = {"integrity.malformed", "serialization.malformed"} if damage == "garbage" else {"integrity.truncated"}
    if "ocdbt.process" in file or file == "_METADATA":  # compressed bytes, and JSON that ends between two tokens
        expected |= {"integrity.malformed", "serialization.malformed"}
    assert each[names.ERROR_CODE] in expected, repr(error)
    assert each[names.ERROR_PHASE] == "read"


def test_checkpoint_of_a_newer_version(operations, tmp_path):
    """An array in a newer format is not damaged."""
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    checkpointer.save(tmp_path / "a", args=ocp.args.PyTreeSave({"w": jnp.ones(10)}))
    path = tmp_path / "a" / "w" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "zarr_format": 9}))
    with pytest.raises(ValueError, match="zarr_format"):
        checkpointer.restore(tmp_path / "a")
    assert (operations()[1][names.ERROR_CODE], operations()[1][names.ERROR_PHASE]) == ("compatibility.newer_version", "read")


@pytest.mark.parametrize("file", ["manifest.ocdbt", "d/*"])
def test_missing_file(operations, saved, file):
    """A checkpoint without one of its files is incomplete."""
    [path] = (saved / "0" / "default").glob(file)
    path.unlink()
    assert isinstance(restore(saved), ValueError)
    assert (operations()[1][names.ERROR_CODE], operations()[1][names.ERROR_PHASE]) == ("integrity.incomplete", "read")


@pytest.mark.parametrize("state", [{**STATE, "weights": jnp.ones(7)}, {"weights": STATE["weights"]}, {**STATE, "more": jnp.ones(2)}])
def test_changed_program(operations, saved, state):
    """Another shape, a missing key or a new one: the program has changed since the save."""
    assert isinstance(restore(saved, state=state), ValueError)
    assert operations()[1][names.ERROR_CODE] == "compatibility.changed_program"


def test_errors_of_the_call(operations, saved):
    """A missing step and a step that exists have their own codes.

    A value that cannot be stored is not tried: after such a save, Orbax leaves a thread that keeps the process from exiting.
    """
    assert restore(saved, 77) is not None  # not FileNotFoundError, but a misleading ValueError, if the manager is new
    with create_manager(saved) as manager, pytest.raises(ValueError, match="already exists"):
        save(manager, 0, force=True)
    assert [each.get(names.ERROR_CODE) for each in operations()] == [None, "not_found.checkpoint", "conflict.exists"]
