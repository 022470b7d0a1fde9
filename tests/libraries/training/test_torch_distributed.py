"""Distributed checkpoints of torch in one process: the files of the checkpoint are the oracle. Several ranks: see `test_ranks`."""

from __future__ import annotations

import pickle
import threading
import time
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from ckpt_observe.instrument.torch_distributed import TorchDistributedInstrumentor
from ckpt_observe.instrument.torch_files import TorchInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentors = TorchInstrumentor(), TorchDistributedInstrumentor()
    for instrumentor in instrumentors:
        instrumentor.instrument()
        assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    for instrumentor in instrumentors:
        instrumentor.uninstrument()


def make_state():
    return {"model": {"w": torch.arange(1000.0), "b": torch.zeros(10, dtype=torch.bfloat16)}, "step": 7}


def phases(recording):
    return {span.attributes[names.PHASE]: span.attributes for span in recording.spans() if names.PHASE in span.attributes}


def data_bytes(path):
    return sum(file.stat().st_size for file in path.glob("*.distcp"))


class GatedWriter(FileSystemWriter):
    """Writes when the test opens the gate, or fails."""

    def __init__(self, path, error=None):
        super().__init__(path)
        self.gate, self.error = threading.Event(), error

    def write_data(self, plan, planner):
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return super().write_data(plan, planner)


@pytest.mark.parametrize("threads", [1, 3])
def test_save_and_load(recording, operations, tmp_path, threads):
    """One save and one load with their phases; the bytes are those of the files. The calls of torch.save per tensor are not recorded."""
    path = tmp_path / "step-100"
    dcp.save(make_state(), storage_writer=FileSystemWriter(path, thread_count=threads))
    loaded = {"model": {"w": torch.zeros(1000), "b": torch.zeros(10, dtype=torch.bfloat16)}, "step": 0}
    dcp.load(loaded, checkpoint_id=path)
    assert loaded["model"]["w"][999] == 999
    save, load = operations()
    assert (save[names.SYSTEM], save[names.OPERATION], load[names.OPERATION]) == ("torch.dcp", "save", "load")
    assert save[names.SIZE_STORED] == data_bytes(path)
    assert (save[names.ID], load[names.ID], save[names.STEP]) == (str(path), str(path), 7)
    assert (save[names.TENSORS], save[names.TENSOR_DTYPES]) == (2, ["float32", "bfloat16"])
    by_phase = phases(recording)
    assert {"plan", "write", "commit", "read"} <= by_phase.keys()
    assert by_phase["write"][names.PHASE_BYTES_OUT] == data_bytes(path)


def test_gated_async_save(recording, operations, tmp_path):
    """The caller is blocked within its own call, and not while the writer waits; the checkpoint is durable after the gate opened."""
    writer = GatedWriter(tmp_path / "step-5")
    before = time.perf_counter()
    future = dcp.async_save(make_state(), storage_writer=writer)
    returned = time.perf_counter()
    assert operations() == []
    opened = time.perf_counter()
    writer.gate.set()
    future.result()
    [save] = wait_for(operations, 1)
    assert 0 < save[names.ASYNC_BLOCKED] == save[names.ASYNC_RELEASED] <= returned - before
    assert save[names.ASYNC_DURABLE] - save[names.ASYNC_RELEASED] >= opened - returned
    assert save[names.SIZE_STORED] == data_bytes(tmp_path / "step-5")
    assert {"stage", "plan", "write", "commit"} <= phases(recording).keys()


def test_late_error_is_on_its_own_save(operations, tmp_path):
    """`async_save` returned; the error is on the save of that step, in the phase `write`, and not on the next one."""
    failing, good = GatedWriter(tmp_path / "step-1", OSError(28, "No space left on device")), GatedWriter(tmp_path / "step-2")
    state = {"w": torch.ones(10)}
    first = dcp.async_save(state, storage_writer=failing)
    failing.gate.set()
    assert isinstance(first.exception(), CheckpointException)
    good.gate.set()
    dcp.async_save(state, storage_writer=good).result()
    bad, ok = wait_for(operations, 2)
    assert (bad[names.STEP], bad[names.ERROR_CODE], bad[names.ERROR_PHASE]) == (1, "storage.no_space", "write")
    assert (bad[names.ERROR_RANKS], bad[names.ERROR_RANK_TYPES]) == ([0], ["OSError"])
    assert names.ASYNC_DURABLE not in bad
    assert (ok[names.STEP], ok[names.OUTCOME]) == (2, "ok")


def test_staging_in_a_thread(recording, operations, tmp_path):
    """With asynchronous staging the result has two futures: the save ends with the upload, and the program is free when both are."""
    stager = DefaultStager(
        StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False)
    )
    try:
        response = dcp.async_save(make_state(), checkpoint_id=tmp_path / "a", async_stager=stager)
        response.upload_completion.result()
        [save] = wait_for(operations, 1)
    finally:
        stager.close()
    assert save[names.ASYNC_BLOCKED] <= save[names.ASYNC_RELEASED] <= save[names.ASYNC_DURABLE]
    assert {"stage", "write"} <= phases(recording).keys()


def wait_for(operations, count):
    """The operations, after the callbacks of the futures have run: they run after `result()` returns."""
    deadline = time.monotonic() + 30
    while len(operations()) < count and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    return operations()


# Damaged checkpoints


def load_damaged(path):
    with pytest.raises(CheckpointException), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load({"w": torch.zeros(100)}, checkpoint_id=path)


@pytest.fixture
def checkpoint(tmp_path):
    dcp.save({"w": torch.ones(100)}, checkpoint_id=tmp_path / "a")
    return tmp_path / "a"


def test_missing_parts(operations, checkpoint, tmp_path):
    """No checkpoint, one whose save never ended, one without metadata that can be read, and one without a data file are told apart."""
    load_damaged(tmp_path / "missing")
    metadata = (checkpoint / ".metadata").read_bytes()
    (checkpoint / ".metadata").unlink()
    load_damaged(checkpoint)
    (checkpoint / ".metadata").write_bytes(metadata[: len(metadata) // 2])
    load_damaged(checkpoint)
    (checkpoint / ".metadata").write_bytes(metadata)
    (checkpoint / "__0_0.distcp").unlink()
    load_damaged(checkpoint)
    failures = operations()[1:]
    assert [each[names.ERROR_CODE] for each in failures] == [
        "not_found.checkpoint",
        "integrity.incomplete",
        "integrity.malformed",
        "integrity.incomplete",
    ]
    assert [each[names.ERROR_PHASE] for each in failures] == ["plan", "plan", "plan", "read"]


def test_truncated_data(operations, checkpoint):
    """Wherever a data file ends too early, the load says that it is truncated or malformed, in the phase `read`."""
    file = checkpoint / "__0_0.distcp"
    data = file.read_bytes()
    for length in range(0, len(data), 149):
        file.write_bytes(data[:length])
        load_damaged(checkpoint)
    failures = operations()[1:]
    codes = Counter(each[names.ERROR_CODE] for each in failures)
    assert codes.keys() <= {"integrity.truncated", "integrity.malformed", "serialization.malformed"}, codes
    assert {each[names.ERROR_PHASE] for each in failures} == {"read"}


def test_damaged_data(operations, checkpoint):
    """A changed byte in a data file is damage in the phase `read`, and never an unknown error. torch does not check the tensors."""
    file = checkpoint / "__0_0.distcp"
    data = file.read_bytes()
    for position in range(0, len(data), 61):
        file.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        try:
            dcp.load({"w": torch.zeros(100)}, checkpoint_id=checkpoint)
        except CheckpointException:
            pass
    failures = [each for each in operations() if each[names.OUTCOME] == "error"]
    assert len(failures) > 3
    assert {each[names.ERROR_CLASS] for each in failures} <= {"integrity", "serialization"}
    assert {each[names.ERROR_PHASE] for each in failures} == {"read"}


def test_checkpoint_of_a_newer_torch(operations, checkpoint, monkeypatch):
    """Metadata with a field that the installed torch does not know are not damaged."""
    path = checkpoint / ".metadata"
    metadata, state = pickle.loads(path.read_bytes()), TensorProperties.__getstate__
    with monkeypatch.context() as patches:
        patches.setattr(TensorProperties, "__getstate__", lambda properties: (*state(properties), "a new field"))
        path.write_bytes(pickle.dumps(metadata))
    load_damaged(checkpoint)
    assert (operations()[1][names.ERROR_CODE], operations()[1][names.ERROR_PHASE]) == ("compatibility.newer_version", "plan")


def test_another_program(operations, checkpoint):
    """Keys and shapes that the checkpoint does not have mean that the program has changed."""
    for state in ({"other": torch.zeros(100)}, {"w": torch.zeros(7)}):
        with pytest.raises(CheckpointException):
            dcp.load(state, checkpoint_id=checkpoint)
    assert [each[names.ERROR_CODE] for each in operations()[1:]] == ["compatibility.changed_program"] * 2
