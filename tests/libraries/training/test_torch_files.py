"""torch.save and torch.load: the zip file is the oracle of what is recorded."""

from __future__ import annotations

import io
import threading
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from newer_torch import make_newer

import ckpt_observe
from ckpt_observe.instrument.checkpoint_file import LOST_FILE
from ckpt_observe.instrument.torch_files import TorchInstrumentor
from ckpt_observe.record.phase_sum import PhaseSum
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
CONTENT = "what the state contains"
INTEGRITY = {"integrity.truncated", "integrity.malformed", "integrity.size_mismatch", "compatibility.newer_version"}


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = TorchInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


@pytest.fixture
def state():
    weight = torch.arange(1000.0)
    return {
        "model": {"layer.weight": weight, "layer.bias": torch.zeros(10, dtype=torch.bfloat16), "tied": weight},
        "optimizer": {"state": {0: {"exp_avg": torch.ones(500, dtype=torch.float64)}}, "param_groups": [{"lr": 0.1}]},
        "text": CONTENT,
        "global_step": 7,
    }


def phases(recording):
    return {span.attributes[names.PHASE]: span.attributes for span in recording.spans() if names.PHASE in span.attributes}


def records_of(path):
    with zipfile.ZipFile(path) as archive:
        return {Path(entry.filename).relative_to(Path(entry.filename).parts[0]): entry.file_size for entry in archive.infolist()}


@pytest.mark.parametrize("kind", [str, Path])
def test_save_is_described_by_its_zip_file(recording, operations, tmp_path, state, kind):
    """Sizes are those of the file and its records; tensors that share memory count once; contents are not recorded."""
    path = tmp_path / "model.pt"
    torch.save(state, kind(path))
    [save] = operations()
    records = records_of(path)
    tensor_bytes = sum(size for name, size in records.items() if name.parts[0] == "data")
    assert (save[names.SYSTEM], save[names.OPERATION], save[names.OUTCOME]) == ("torch", "save", "ok")
    assert (save[names.LOCATION], save[names.ID], save[names.STEP]) == (str(path), str(path), 7)
    assert save[names.SIZE_STORED] == path.stat().st_size
    assert sum(save[names.TENSOR_SIZES]) == sum(save[names.KEY_SIZES]) == tensor_bytes
    assert save[names.TENSORS] == 4
    assert save[names.TENSOR_DTYPES] == ["float32", "float64", "bfloat16"]
    assert save[names.TENSOR_NAMES][:2] == ["optimizer.state.0.exp_avg", "model.layer.weight"]
    assert dict(zip(save[names.KEY_NAMES], save[names.KEY_SIZES], strict=True)) == {"model": 4020, "optimizer": 4000}
    by_phase = phases(recording)
    assert list(by_phase) == ["serialize", "write", "finalize"]
    assert by_phase["serialize"][names.PHASE_BYTES_OUT] == records[Path("data.pkl")]
    assert by_phase["write"][names.PHASE_BYTES_IN] == save[names.SIZE_SERIALIZED] >= tensor_bytes + records[Path("data.pkl")]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensor_has_the_bytes_of_its_parts(operations, tmp_path, layout):
    """A sparse tensor has no memory of its own. Its size is that of the records of its indices and values."""
    path = tmp_path / "sparse.pt"
    torch.save({"sparse": torch.eye(100).to_sparse(layout=layout), "dense": torch.ones(10)}, path)
    [save] = operations()
    tensor_bytes = sum(size for name, size in records_of(path).items() if name.parts[0] == "data")
    assert (save[names.OUTCOME], save[names.TENSORS]) == ("ok", 2)
    assert sum(save[names.TENSOR_SIZES]) == tensor_bytes
    assert dict(zip(save[names.KEY_NAMES], save[names.KEY_SIZES], strict=True)) == {"sparse": tensor_bytes - 40, "dense": 40}


@pytest.mark.parametrize("method", ["begin", "end"])
@pytest.mark.parametrize("phase", ["serialize", "write"])
def test_fault_while_a_record_is_written_does_not_reach_the_save(operations, tmp_path, state, monkeypatch, method, phase):
    """If our own code fails at a record, the file is complete, and the save is recorded."""
    original = getattr(PhaseSum, method)

    def fail_in_phase(total, *args):
        if total.name == phase:
            raise LookupError("a fault of ours")
        return original(total, *args)

    monkeypatch.setattr(PhaseSum, method, fail_in_phase)
    torch.save(state, tmp_path / "model.pt")
    assert torch.equal(torch.load(tmp_path / "model.pt")["model"]["tied"], state["model"]["tied"])
    assert operations()[0][names.OUTCOME] == "ok"


def test_load_is_a_load_and_links_to_its_file(recording, operations, tmp_path, state):
    """`torch.load` is not a restore: it may read pretrained weights. It has the same id as the save of the file."""
    path = tmp_path / "model.pt"
    torch.save(state, path)
    loaded = torch.load(path)
    assert torch.equal(loaded["model"]["layer.weight"], state["model"]["layer.weight"])
    save, load = operations()
    assert (load[names.OPERATION], load[names.ID]) == ("load", save[names.ID])
    for name in (names.TENSORS, names.TENSOR_DTYPES, names.SIZE_STORED, names.STEP, names.KEY_SIZES):
        assert load[name] == save[name]
    assert {"read", "deserialize"} <= phases(recording).keys()


def test_save_of_a_part_shows_what_it_really_stores(operations, tmp_path):
    """A row of a large tensor is saved with the whole tensor. The sizes tell, and equal those of the file."""
    path = tmp_path / "row.pt"
    torch.save({"row": torch.zeros(1000, 1000)[0]}, path)
    [save] = operations()
    assert save[names.KEY_SIZES] == [4_000_000] or save[names.KEY_SIZES] == (4_000_000,)
    assert save[names.SIZE_STORED] > 4_000_000


def test_file_objects_and_the_old_format(recording, operations, state):
    """A buffer has no path and no size of a file, but the bytes that were written. The old format has one phase."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    torch.save(state, io.BytesIO(), _use_new_zipfile_serialization=False)
    new, old = operations()
    assert not {names.LOCATION, names.ID, names.SIZE_STORED} & (new.keys() | old.keys())
    assert 0 < new[names.SIZE_SERIALIZED] < len(buffer.getvalue())
    assert new[names.TENSORS] == old[names.TENSORS] == 4
    counts = Counter(span.attributes[names.PHASE] for span in recording.spans() if names.PHASE in span.attributes)
    assert counts == {"serialize": 1, "write": 2, "finalize": 1}


def test_other_names_for_the_same_function(operations, tmp_path):
    """`torch.serialization.save` is observed, too, and a save is counted once."""
    torch.serialization.save([1], tmp_path / "a.pt")
    assert torch.serialization.load(tmp_path / "a.pt") == [1]
    assert [each[names.OPERATION] for each in operations()] == ["save", "load"]


def test_inside_another_operation_a_file_is_a_phase(recording, tmp_path):
    """A program that records its own save, which calls torch.save, has one save."""
    with ckpt_observe.checkpoint("save"):
        torch.save([1], tmp_path / "a.pt")
    assert sorted(span.name for span in recording.spans()) == ["checkpoint.save", "checkpoint.write"]


@pytest.mark.parametrize(
    ("value", "error"), [(threading.Lock(), TypeError), (lambda: None, (AttributeError, Exception))], ids=["lock", "lambda"]
)
def test_state_that_cannot_be_pickled_costs_the_previous_file(operations, tmp_path, value, error):
    """The save fails in `serialize`, and its impact is told: torch had opened the file, so the checkpoint before is gone."""
    path = tmp_path / "model.pt"
    torch.save([CONTENT], path)
    with pytest.raises(error):
        torch.save([torch.ones(9), value], path)
    with pytest.raises(Exception):  # noqa: B017 - the file is damaged
        torch.load(path)
    _, failed, _ = operations()
    assert (failed[names.ERROR_CODE], failed[names.ERROR_PHASE]) == ("serialization.unsupported_type", "serialize")
    assert failed[names.ERROR_IMPACT] == LOST_FILE
    assert names.SIZE_STORED not in failed


def test_memory_viewed_as_two_types(operations, tmp_path):
    """torch refuses to save it: a value that the format cannot represent."""
    tensor = torch.zeros(4)
    with pytest.raises(RuntimeError):
        torch.save([tensor, tensor.view(torch.int32)], tmp_path / "a.pt")
    assert operations()[0][names.ERROR_CODE] == "serialization.unsupported_type"


@pytest.mark.parametrize(
    ("path", "code"), [("missing/a.pt", "not_found.path"), (".", "configuration.invalid")], ids=["no directory", "a directory"]
)
def test_file_that_cannot_be_created(operations, tmp_path, path, code):
    """torch raises RuntimeError with a text for everything; the text is understood."""
    with pytest.raises(RuntimeError):
        torch.save([1], tmp_path / path)
    [failed] = operations()
    assert failed[names.ERROR_CODE] == code
    assert names.ERROR_IMPACT not in failed


@pytest.mark.parametrize("weights_only", [True, False])
def test_truncated_file(operations, tmp_path, state, weights_only):
    """Wherever a file ends too early, the load says so, and not an unknown error."""
    path = tmp_path / "model.pt"
    torch.save(state, path)
    data = path.read_bytes()
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(Exception):  # noqa: B017 - torch raises many types
            torch.load(path, weights_only=weights_only)
    codes = Counter(attributes[names.ERROR_CODE] for attributes in operations()[1:])
    assert codes.keys() <= {"integrity.truncated", "integrity.malformed"}
    assert codes["integrity.truncated"] > codes["integrity.malformed"]


@pytest.mark.parametrize("weights_only", [True, False])
def test_damaged_file(operations, tmp_path, weights_only):
    """A flipped byte in the pickle or the directory is damage of the file or its contents, and never an unknown error."""
    path = tmp_path / "model.pt"
    torch.save({"w": torch.zeros(3), "step": 1}, path)
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        try:
            torch.load(path, weights_only=weights_only)
        except Exception:
            pass
    codes = Counter(attributes.get(names.ERROR_CODE) for attributes in operations()[1:])
    allowed = {"serialization.malformed", "serialization.unsupported_type", "compatibility.changed_program", "configuration.unsupported"}
    assert codes.keys() - {None} <= INTEGRITY | allowed, codes
    assert codes["integrity.malformed"] > 20


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"", {"integrity.truncated"}),
        (b"\0" * 50, {"serialization.malformed"}),
        (b"not a checkpoint", {"serialization.malformed", "integrity.truncated"}),
        (b"\x80\x02}q\x00.", {"integrity.malformed"}),
    ],
    ids=["empty", "zeros", "text", "another pickle"],
)
def test_file_that_is_no_checkpoint(operations, tmp_path, data, codes):
    """Anything else than a file of torch is malformed."""
    path = tmp_path / "model.pt"
    path.write_bytes(data)
    with pytest.raises(Exception):  # noqa: B017 - torch raises many types
        torch.load(path)
    assert operations()[0][names.ERROR_CODE] in codes


def test_file_of_a_newer_torch(operations, tmp_path):
    """A file whose format is newer than the installed torch is not damaged."""
    path = tmp_path / "model.pt"
    torch.save([1], path)
    make_newer(path)
    with pytest.raises(RuntimeError, match="maximum supported version"):
        torch.load(path)
    assert operations()[1][names.ERROR_CODE] == "compatibility.newer_version"


def test_device_without_space(operations):
    """torch does not say why it cannot write to a path; a file object raises OSError."""
    with pytest.raises(RuntimeError, match="unexpected pos"):
        torch.save([torch.zeros(100_000)], "/dev/full")
    with open("/dev/full", "wb", buffering=0) as device, pytest.raises(OSError, match="No space"):
        torch.save([torch.zeros(100_000)], device)
    path_error, file_error = operations()
    assert (path_error[names.ERROR_CODE], path_error[names.ERROR_CLASS]) == ("storage.io", "storage")
    assert (file_error[names.ERROR_CODE], file_error[names.ERROR_CLASS]) == ("storage.no_space", "capacity")


class Unknown:
    """A class that `weights_only` refuses."""


def test_refused_and_missing_files(operations, tmp_path):
    """A type that `weights_only` refuses, and a file that does not exist, have their own codes."""
    path = tmp_path / "model.pt"
    torch.save(Unknown(), path)
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path)
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "missing.pt")
    assert [each[names.ERROR_CODE] for each in operations()[1:]] == ["serialization.unsupported_type", "not_found.path"]
