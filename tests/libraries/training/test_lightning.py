"""Lightning: the checkpoint file is the oracle of what is recorded."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import lightning
import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from newer_torch import make_newer
from pytorch_lightning import Trainer as StandaloneTrainer
from pytorch_lightning.demos.boring_classes import BoringModel
from tiny_lightning import TinyModule, create_trainer

from ckpt_observe.instrument.lightning import LightningInstrumentor, PyTorchLightningInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = [
    pytest.mark.libraries,
    pytest.mark.filterwarnings("ignore"),  # Lightning's own: few workers, existing directories
]


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = LightningInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


@pytest.fixture
def saved(operations, tmp_path):
    """The checkpoint of step 2."""
    create_trainer(tmp_path).fit(TinyModule())
    return tmp_path / "step=2.ckpt"


def continue_run(path, **arguments):
    """Continue from a checkpoint and return the exception, if any."""
    try:
        create_trainer(path.parent, 4).fit(TinyModule(**arguments), ckpt_path=str(path))
    except Exception as error:
        return error
    return None


def phases(recording, operation):
    [span] = [span for span in recording.spans() if span.attributes.get(names.OPERATION) == operation]
    spans = [each for each in recording.spans() if each.trace_id == span.trace_id and names.PHASE in each.attributes]
    return {each.attributes[names.PHASE] for each in spans if each.start_unix_nano >= span.start_unix_nano}


def test_each_checkpoint_is_one_save_with_the_size_of_its_file(recording, operations, tmp_path):
    """`last.ckpt` is a checkpoint of its own. All are in the trace of the run."""
    create_trainer(tmp_path, 4, save_last=True, save_top_k=-1).fit(TinyModule())
    saves = operations()
    assert {each[names.OPERATION] for each in saves} == {"save"}
    assert [each[names.STEP] for each in saves] == [2, 2, 4, 4]
    sizes = {each[names.ID]: each[names.SIZE_STORED] for each in saves}
    assert sizes == {str(path): path.stat().st_size for path in tmp_path.iterdir()}
    assert {(each[names.SAVER], each[names.TASK_NAME], each[names.TASK_ID]) for each in saves} == {
        ("TorchCheckpointIO", "TinyModule", str(tmp_path))
    }
    assert len({span.trace_id for span in recording.spans()}) == 1
    assert {span.attributes.get(names.PHASE) for span in recording.spans()} == {None, "stage", "write"}


def test_restore_is_one_operation(recording, operations, saved):
    """The file is read once and applied in several calls, which are phases of one restore."""
    assert continue_run(saved) is None
    restore = operations()[1]
    assert (restore[names.OPERATION], restore[names.STEP], restore[names.ID]) == ("restore", 2, str(saved))
    assert {"read", "apply"} <= phases(recording, "restore")
    assert names.ALTERED_KEYS not in restore


def test_removed_checkpoint_is_a_delete(operations, tmp_path):
    """With `save_top_k=1`, the older checkpoint is removed, and its size is known."""
    create_trainer(tmp_path, 4).fit(TinyModule())
    first, _, delete = operations()
    assert (delete[names.OPERATION], delete[names.ID]) == ("delete", first[names.ID])
    assert (delete[names.SIZE_FREED], delete[names.RETENTION]) == (first[names.SIZE_STORED], True)


def test_model_and_fabric(operations, saved, tmp_path):
    """`load_from_checkpoint` is a load, and Fabric saves and restores a state."""
    TinyModule.load_from_checkpoint(str(saved))
    fabric = lightning.Fabric(accelerator="cpu")
    fabric.save(str(tmp_path / "fabric.ckpt"), {"step": 7, "weights": torch.ones(9)})
    fabric.load(str(tmp_path / "fabric.ckpt"))
    _, load, save, restore = operations()
    assert (load[names.OPERATION], load[names.ID], load[names.STEP]) == ("load", str(saved), 2)
    assert (save[names.STEP], save[names.SIZE_STORED]) == (7, (tmp_path / "fabric.ckpt").stat().st_size)
    assert (restore[names.OPERATION], restore[names.ID]) == ("restore", save[names.ID])


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9])
def test_truncated_file(operations, saved, part):
    """Wherever the file ends too early, the restore reports that, while reading."""
    saved.write_bytes(saved.read_bytes()[: int(saved.stat().st_size * part)])
    error = continue_run(saved)
    restore = operations()[1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == ("integrity.truncated", "read"), repr(error)


@pytest.mark.parametrize("content", [b"\0" * 500, b"garbage" * 100, b"\x80\x02" * 100], ids=["zeros", "text", "pickle"])
def test_corrupt_file(operations, saved, content):
    """Bytes that are not what was saved never give an unknown error."""
    saved.write_bytes(content)
    error = continue_run(saved)
    restore = operations()[1]
    assert restore[names.ERROR_CLASS] in {"integrity", "serialization"}, repr(error)
    assert restore[names.ERROR_PHASE] == "read"


@pytest.mark.parametrize(
    ("change", "code", "phase"),
    [
        (lambda state: state.pop("state_dict"), "serialization.malformed", "apply"),
        (lambda state: state.pop("optimizer_states"), "compatibility.changed_program", "apply"),
        (lambda state: state.pop("pytorch-lightning_version"), "serialization.malformed", "read"),
    ],
    ids=["model", "optimizer", "version"],
)
def test_file_that_is_not_a_complete_checkpoint(operations, saved, change, code, phase):
    """A file with other contents than Lightning expects, such as weights only, is named as such."""
    state = torch.load(saved, weights_only=False)
    change(state)
    torch.save(state, saved)
    error = continue_run(saved)
    restore = operations()[1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == (code, phase), repr(error)


def test_file_of_a_newer_torch(operations, saved):
    """A file in a newer format is not damaged."""
    make_newer(saved)
    assert isinstance(continue_run(saved), RuntimeError)
    assert (operations()[1][names.ERROR_CODE], operations()[1][names.ERROR_PHASE]) == ("compatibility.newer_version", "read")


def test_changed_model(operations, saved):
    """A model of another shape does not fit. One that accepts missing parameters continues, and they are named."""
    assert isinstance(continue_run(saved, width=8), RuntimeError)
    assert continue_run(saved, extra=True, strict=False) is None
    _, failed, altered, *_ = operations()
    assert (failed[names.ERROR_CODE], failed[names.ERROR_PHASE]) == ("compatibility.changed_program", "apply")
    assert altered[names.ALTERED_KEYS] == ["head.bias", "head.weight"]


def test_missing_file(operations, tmp_path):
    """A checkpoint that does not exist is reported as such."""
    assert isinstance(continue_run(tmp_path / "missing.ckpt"), FileNotFoundError)
    assert operations()[0][names.ERROR_CODE] == "not_found.checkpoint"


class GatedIO(TorchCheckpointIO):
    """Writes when the gate is open. Fails if it has an error."""

    def __init__(self, error=None):
        self.gate, self.error = threading.Event(), error

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        super().save_checkpoint(checkpoint, path, storage_options)


def save_async(path, checkpoint_io):
    """Save with an asynchronous plugin, open the gate when the call has returned, and wait for the file."""
    plugin = AsyncCheckpointIO(checkpoint_io)
    trainer = create_trainer(path.parent, plugins=[plugin])
    trainer.strategy.connect(TinyModule())
    trainer.save_checkpoint(path)
    assert not path.exists()
    checkpoint_io.gate.set()
    plugin.teardown()


def test_async_save_ends_when_the_file_is_written(recording, operations, tmp_path):
    """The caller is blocked until its state is copied. The save ends after the gate, with the size of the file."""
    save_async(tmp_path / "async.ckpt", GatedIO())
    [save] = operations()
    assert save[names.SIZE_STORED] == (tmp_path / "async.ckpt").stat().st_size
    assert save[names.ASYNC_BLOCKED] < save[names.ASYNC_DURABLE]
    assert phases(recording, "save") == {"stage", "write"}


def test_async_save_that_fails_late(operations, tmp_path):
    """The call returned; the error of the thread is on this save."""
    with pytest.raises(OSError, match="full"):
        save_async(tmp_path / "async.ckpt", GatedIO(OSError(errno.ENOSPC, "full")))
    [save] = operations()
    assert (save[names.ERROR_CODE], save[names.ERROR_PHASE]) == ("storage.no_space", "write")
    assert names.SIZE_STORED not in save


class UploadingIO(TorchCheckpointIO):
    """Writes in the call, and uploads a copy in a thread."""

    def __init__(self):
        self._executor = ThreadPoolExecutor(1)

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint(checkpoint, path, storage_options)
        self._executor.submit(len, str(path))


class AsyncIOThatWritesInTheCall(AsyncCheckpointIO):
    """A subclass that does without the thread."""

    def save_checkpoint(self, *args, **kwargs):
        self.checkpoint_io.save_checkpoint(*args, **kwargs)


class DerivedAsyncIO(AsyncCheckpointIO):
    """A subclass that calls the original method."""

    def save_checkpoint(self, *args, **kwargs):
        super().save_checkpoint(*args, **kwargs)


def create_saver(directory, plugin):
    trainer = create_trainer(directory, plugins=[plugin])
    trainer.strategy.connect(TinyModule())
    return trainer


@pytest.mark.parametrize(
    "create_plugin", [UploadingIO, lambda: AsyncIOThatWritesInTheCall(TorchCheckpointIO())], ids=["upload", "subclass"]
)
def test_plugin_that_writes_in_the_call(recording, operations, tmp_path, create_plugin):
    """The save ends with its call, although the plugin has threads or is derived from the asynchronous one."""
    create_saver(tmp_path, create_plugin()).save_checkpoint(tmp_path / "model.ckpt")
    [save] = operations()
    assert (save[names.OUTCOME], save[names.SIZE_STORED]) == ("ok", (tmp_path / "model.ckpt").stat().st_size)
    assert names.ASYNC_DURABLE not in save
    assert "write" in phases(recording, "save")


@pytest.mark.parametrize("plugin", [AsyncCheckpointIO, DerivedAsyncIO])
def test_async_saves_to_the_same_path(operations, tmp_path, plugin):
    """Each of several saves that wait for the thread is complete when its file is written."""
    path, checkpoint_io = tmp_path / "last.ckpt", GatedIO()
    plugin = plugin(checkpoint_io)
    trainer = create_saver(tmp_path, plugin)
    for _ in range(3):
        trainer.save_checkpoint(path)
    assert operations() == []
    checkpoint_io.gate.set()
    plugin.teardown()
    saves = operations()
    assert [each[names.OUTCOME] for each in saves] == ["ok"] * 3
    assert {each[names.SIZE_STORED] for each in saves} == {path.stat().st_size}
    assert all(names.ASYNC_DURABLE in each for each in saves)


def test_standalone_package(operations, tmp_path):
    """`pytorch_lightning` has classes of its own, which are observed, too."""
    instrumentor = PyTorchLightningInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    trainer = StandaloneTrainer(accelerator="cpu", logger=False)
    trainer.strategy.connect(BoringModel())
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    instrumentor.uninstrument()
    [save] = operations()
    assert save[names.SIZE_STORED] == (tmp_path / "model.ckpt").stat().st_size
