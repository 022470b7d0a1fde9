"""Accelerate: the checkpoint directory is the oracle of what is recorded."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from newer_torch import make_newer

from ckpt_observe.instrument.accelerate import AccelerateInstrumentor
from ckpt_observe.record import guard
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
FILES = ["model.safetensors", "optimizer.bin", "scheduler.bin", "custom_checkpoint_0.pkl"]


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = AccelerateInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


def create_accelerator(width=4, registered=True, **arguments):
    """Return an accelerator with a model, an optimizer, a scheduler and another object."""
    accelerator = Accelerator(cpu=True, **arguments)
    model = torch.nn.Linear(width, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    if registered:
        accelerator.register_for_checkpointing(torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(model.parameters())))
    return accelerator


def load(directory, **arguments):
    """Load a checkpoint and return the exception, if any."""
    try:
        create_accelerator(**arguments).load_state(str(directory))
    except Exception as error:
        return error
    return None


def directory_size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def saved(operations, tmp_path):
    create_accelerator().save_state(str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize("safe", [True, False])
def test_checkpoint_is_one_save_and_one_restore(recording, operations, tmp_path, safe):
    """Both report the directory and its size, whatever writes the files."""
    directory = tmp_path / "state"
    create_accelerator().save_state(str(directory), safe_serialization=safe)
    assert load(directory) is None
    save, restore = operations()
    assert (save[names.OPERATION], restore[names.OPERATION]) == ("save", "restore")
    assert save[names.FORMAT] == ("safetensors" if safe else "pickle")
    for each in (save, restore):
        assert (each[names.ID], each[names.LOCATION]) == (str(directory), str(tmp_path))
        assert each[names.SIZE_STORED] == directory_size(directory)
        assert each[names.OUTCOME] == "ok"
    sizes = dict(zip(save[names.KEY_NAMES], save[names.KEY_SIZES], strict=True))
    assert sizes == {path.name: path.stat().st_size for path in directory.iterdir()}
    assert {span.attributes.get(names.PHASE) for span in recording.spans()} == {None, "stage", "write", "read", "apply"}


def test_automatic_names(operations, tmp_path):
    """The number of the checkpoint is its step, also if the accelerator chooses the last one itself."""
    configuration = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = create_accelerator(project_config=configuration)
    accelerator.save_state()
    accelerator.save_state()
    accelerator.load_state()
    assert [(each[names.STEP], each[names.ID]) for each in operations()] == [
        (step, str(tmp_path / "checkpoints" / f"checkpoint_{step}")) for step in (0, 1, 1)
    ]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("file", FILES)
def test_truncated_file(operations, saved, file, part):
    """Wherever a file ends too early, the restore reports that, while reading."""
    path = saved / file
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    assert load(saved) is not None
    restore = operations()[1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == ("integrity.truncated", "read")


@pytest.mark.parametrize("content", [b"\0" * 500, b"garbage" * 100, b"\x80\x02" * 100], ids=["zeros", "text", "pickle"])
@pytest.mark.parametrize("file", FILES)
def test_corrupt_file(operations, saved, file, content):
    """Bytes that are not what was saved never give an unknown error."""
    (saved / file).write_bytes(content)
    error = load(saved)
    restore = operations()[1]
    assert restore[names.ERROR_CLASS] in {"integrity", "serialization"}, repr(error)
    assert restore[names.ERROR_PHASE] == "read"


def test_file_of_a_newer_torch(operations, saved):
    """A file in a newer format is not damaged."""
    make_newer(saved / "optimizer.bin")
    assert isinstance(load(saved), RuntimeError)
    assert (operations()[1][names.ERROR_CODE], operations()[1][names.ERROR_PHASE]) == ("compatibility.newer_version", "read")


@pytest.mark.parametrize("file", FILES[:3])
def test_half_written_checkpoint(operations, saved, file):
    """A checkpoint without one of its files is incomplete."""
    (saved / file).unlink()
    assert isinstance(load(saved), FileNotFoundError)
    restore = operations()[1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == ("integrity.incomplete", "read")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"garbage")], ids=["missing", "corrupt"])
def test_random_states_that_accelerate_ignores(operations, saved, damage):
    """Accelerate continues with other random numbers and only logs it; the restore names them."""
    damage(saved / "random_states_0.pkl")
    assert load(saved) is None
    assert operations()[1][names.ALTERED_KEYS] == ["random_states"]


@pytest.mark.parametrize("change", [{"width": 8}, {"registered": False}], ids=str)
def test_program_that_changed(operations, saved, change):
    """A checkpoint that does not fit the model or the registered objects was written by another program."""
    assert isinstance(load(saved, **change), RuntimeError)
    assert operations()[1][names.ERROR_CODE] == "compatibility.changed_program"


def test_missing_directory_of_automatic_names(operations, tmp_path):
    """If there is no checkpoint to choose from, that is one failed restore, which says where Accelerate looked."""
    configuration = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator, faults_before = create_accelerator(project_config=configuration), guard.faults.total()
    with pytest.raises(FileNotFoundError):
        accelerator.load_state()
    [restore] = operations()
    assert (restore[names.OPERATION], restore[names.ERROR_CODE]) == ("restore", "not_found.checkpoint")
    assert restore[names.LOCATION] == str(tmp_path / "checkpoints")
    assert guard.faults.total() == faults_before


def test_missing_directory(operations, tmp_path):
    """A directory that does not exist is not a checkpoint."""
    assert isinstance(load(tmp_path / "missing"), ValueError)
    assert operations()[0][names.ERROR_CODE] == "not_found.checkpoint"


def test_save_that_fails(operations, tmp_path):
    """A save that cannot write has the error of the file system, and no size."""
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(FileExistsError):
        create_accelerator().save_state(str(tmp_path / "state"))
    assert operations()[0][names.ERROR_CODE] == "conflict.exists"
    assert names.SIZE_STORED not in operations()[0]
