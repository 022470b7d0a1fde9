"""The Trainer of Transformers: the checkpoint directory is the oracle of what is recorded."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter

import pytest
import torch
from newer_torch import make_newer
from tiny_trainer import create_trainer
from transformers import Trainer

from ckpt_observe.instrument.transformers import TransformersInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


@pytest.fixture(autouse=True)
def instrumented(recording):
    torch.set_num_threads(1)
    instrumentor = TransformersInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


@pytest.fixture
def trained(operations, tmp_path):
    """The directory of a run with the checkpoint of step 2."""
    create_trainer(tmp_path / "run").train()
    return tmp_path / "run"


def directory_size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def phases(recording, operation):
    [span] = [span for span in recording.spans() if span.attributes.get(names.OPERATION) == operation]
    return {each.attributes[names.PHASE] for each in recording.spans() if names.PHASE in each.attributes and each.trace_id == span.trace_id}


def continue_run(directory, **arguments):
    """Continue from the checkpoint of step 2 and return the exception, if any."""
    try:
        create_trainer(directory, 4, **arguments).train(resume_from_checkpoint=str(directory / "checkpoint-2"))
    except Exception as error:
        return error
    return None


def test_each_checkpoint_is_one_save_with_the_size_of_its_directory(recording, operations, tmp_path):
    """Whatever writes the files, a checkpoint is counted once, and the sizes add up to the bytes on disk."""
    create_trainer(tmp_path, 6).train()
    saves = operations()
    assert [(save[names.OPERATION], save[names.STEP]) for save in saves] == [("save", 2), ("save", 4), ("save", 6)]
    for save in saves:
        directory = tmp_path / f"checkpoint-{save[names.STEP]}"
        assert save[names.ID] == str(directory)
        assert save[names.SIZE_STORED] == directory_size(directory)
        sizes = dict(zip(save[names.KEY_NAMES], save[names.KEY_SIZES], strict=True))
        assert sizes == {path.name: path.stat().st_size for path in directory.iterdir()}
        assert (save[names.LOCATION], save[names.TASK_ID], save[names.OUTCOME]) == (str(tmp_path), str(tmp_path), "ok")
    assert len({span.trace_id for span in recording.spans()}) == 1
    assert {span.attributes[names.PHASE] for span in recording.spans() if names.PHASE in span.attributes} == {"write"}


def test_restore_is_one_operation(recording, operations, trained):
    """Model, state, optimizer and random generators are read by separate calls, and are phases of one restore."""
    assert continue_run(trained) is None
    [_, restore, _] = operations()
    assert (restore[names.OPERATION], restore[names.STEP], restore[names.ID]) == ("restore", 2, str(trained / "checkpoint-2"))
    assert restore[names.SIZE_STORED] == directory_size(trained / "checkpoint-2")
    assert names.ALTERED_KEYS not in restore
    assert {"read", "apply"} <= phases(recording, "restore")


def test_override_that_calls_its_base_class_is_one_save(operations, tmp_path):
    """Trainers of other packages override the method and call it."""

    class OwnTrainer(Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            return super()._save_checkpoint(*args, **kwargs)

    create_trainer(tmp_path, trainer=OwnTrainer).train()
    [save] = operations()
    assert save[names.SAVER] == save[names.TASK_NAME] == "OwnTrainer"


def test_removed_checkpoints_are_counted(operations, tmp_path):
    """A prune is recorded when a checkpoint is removed, with its size, and not at the other saves."""
    create_trainer(tmp_path, 6, save_total_limit=2).train()
    first, _, _, prune = operations()
    assert [each[names.OPERATION] for each in operations()] == ["save", "save", "save", "prune"]
    assert (prune[names.COUNT], prune[names.SIZE_FREED], prune[names.RETENTION]) == (1, first[names.SIZE_STORED], True)
    assert not (tmp_path / "checkpoint-2").exists()


def test_model_that_the_program_saves_is_a_save(operations, tmp_path):
    """Outside a checkpoint, `save_model` is a save of its own."""
    create_trainer(tmp_path / "run").save_model(str(tmp_path / "final"))
    [save] = operations()
    assert (save[names.ID], save[names.REASON]) == (str(tmp_path / "final"), "save_model")
    assert save[names.SIZE_STORED] == directory_size(tmp_path / "final")


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_truncated_file(operations, trained, file, part):
    """Wherever a file ends too early, the restore reports that, while reading."""
    path = trained / "checkpoint-2" / file
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    assert continue_run(trained) is not None
    restore = operations()[1]
    assert (restore[names.OPERATION], restore[names.OUTCOME], restore[names.ERROR_PHASE]) == ("restore", "error", "read")
    assert restore[names.ERROR_CODE] == "integrity.truncated"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "content", [b"\0" * 500, b"garbage" * 100, b"\x80\x02" * 100, b"PK\x03\x04" + b"\0" * 300], ids=["zeros", "text", "pickle", "zip"]
)
def test_corrupt_file(operations, trained, file, content):
    """Bytes that are not what was saved never give an unknown error."""
    (trained / "checkpoint-2" / file).write_bytes(content)
    error = continue_run(trained)
    restore = operations()[1]
    assert restore[names.ERROR_TYPE] == type(error).__name__
    assert restore[names.ERROR_CLASS] in {"integrity", "serialization"}, repr(error)
    assert restore[names.ERROR_PHASE] == "read"


def test_checkpoint_of_a_newer_version(operations, trained):
    """A field of the Trainer's state, or a format of torch, that the installed version does not know is from a newer one."""
    checkpoint = trained / "checkpoint-2"
    state = (checkpoint / "trainer_state.json").read_text()
    (checkpoint / "trainer_state.json").write_text(json.dumps({**json.loads(state), "a_new_field": 1}))
    assert isinstance(continue_run(trained), TypeError)
    (checkpoint / "trainer_state.json").write_text(state)
    make_newer(checkpoint / "optimizer.pt")
    assert isinstance(continue_run(trained), RuntimeError)
    failures = operations()[1:]
    assert [(each[names.ERROR_CODE], each[names.ERROR_PHASE]) for each in failures] == [("compatibility.newer_version", "read")] * 2


def test_half_written_checkpoint(operations, trained):
    """The state of the Trainer is written last. A checkpoint without it is incomplete, and not a missing path."""
    (trained / "checkpoint-2" / "trainer_state.json").unlink()
    assert isinstance(continue_run(trained), FileNotFoundError)
    restore = operations()[1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == ("integrity.incomplete", "read")


def test_directory_without_a_model(operations, trained):
    """An empty directory is an incomplete checkpoint; one that does not exist is none."""
    shutil.rmtree(trained / "checkpoint-2")
    (trained / "checkpoint-2").mkdir()
    assert isinstance(continue_run(trained), ValueError)
    (trained / "checkpoint-2").rmdir()
    assert isinstance(continue_run(trained), ValueError)
    assert [each[names.ERROR_CODE] for each in operations()[1:]] == ["integrity.incomplete", "not_found.checkpoint"]


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_missing_file_that_the_trainer_does_not_miss(operations, trained, file):
    """The Trainer continues without the file; the restore names what is lost."""
    (trained / "checkpoint-2" / file).unlink()
    assert continue_run(trained) is None
    restore = operations()[1]
    assert (restore[names.OUTCOME], restore[names.ALTERED_KEYS]) == ("ok", [file.partition(".")[0]])


def test_parameters_that_the_model_or_the_checkpoint_lacks(operations, trained):
    """The Trainer only warns about them; the restore names them. The optimizer does not fit either, which is an error."""
    shutil.copytree(trained / "checkpoint-2", trained / "copy")
    (trained / "checkpoint-2" / "optimizer.pt").unlink()
    assert continue_run(trained, extra=("head",)) is None
    assert operations()[1][names.ALTERED_KEYS] == ["head.bias", "head.weight", "optimizer"]
    shutil.rmtree(trained / "checkpoint-2")
    (trained / "copy").rename(trained / "checkpoint-2")
    assert isinstance(continue_run(trained, extra=("head",)), ValueError)
    restore = operations()[-1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == ("compatibility.changed_program", "apply")


def test_model_of_another_shape(operations, trained):
    """A model that changed since the save does not fit: the state was read and could not be applied."""
    assert isinstance(continue_run(trained, width=8), RuntimeError)
    restore = operations()[1]
    assert (restore[names.ERROR_CODE], restore[names.ERROR_PHASE]) == ("compatibility.changed_program", "apply")


def test_best_model_is_loaded(operations, tmp_path):
    """`load_best_model_at_end` is a load of that checkpoint."""
    trainer = create_trainer(tmp_path, 4, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
    trainer.train()
    load = operations()[-1]
    assert (load[names.OPERATION], load[names.REASON]) == ("load", "best_model")
    assert load[names.ID] == trainer.state.best_model_checkpoint


def test_save_that_fails(operations, tmp_path, monkeypatch):
    """A save that cannot write has the error of the file system, and no size."""
    (tmp_path / "checkpoint-2").write_text("in the way")
    with pytest.raises(FileExistsError):
        create_trainer(tmp_path).train()
    [save] = operations()
    assert (save[names.ERROR_CODE], save[names.ERROR_PHASE]) == ("conflict.exists", "write")
    assert names.SIZE_STORED not in save


def test_random_state_is_that_of_a_bare_run(tmp_path):
    """Observation draws no random numbers: the checkpoint of an observed run is that of a run that is not observed."""
    create_trainer(tmp_path / "observed", seed=7).train()
    TransformersInstrumentor().uninstrument()
    states = []
    for name in ("observed", "bare"):
        if name == "bare":
            create_trainer(tmp_path / name, seed=7).train()
        state = torch.load(tmp_path / name / "checkpoint-2" / "rng_state.pth", weights_only=False)
        states.append((state["python"], state["cpu"].tolist(), state["numpy"][1].tolist()))
    assert states[0] == states[1]


def test_continued_run_links_to_its_save(observation, tmp_path):
    """In another process, the restore links to the save, loses no steps, and the run has the same task id.

    Each checkpoint is counted once in the metrics, with the bytes that are in the directory.
    """
    metrics = tmp_path / "metrics.prom"
    exporters = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "CKPT_OBSERVE_METRICS_TEXTFILE": metrics}
    assert observation.run("trainer_restart.py", tmp_path / "run", **exporters) == [0, 0]
    spans = observation.spans()
    counts = Counter()
    for operation, count in re.findall(r'^checkpoint_operations_total{.*operation="(\w+)".*} (\d+)', metrics.read_text(), re.MULTILINE):
        counts[operation] += int(count)
    assert +counts == {"restore": 1, "save": 3}
    saved_bytes = sum(span.attributes[names.SIZE_STORED] for span in spans.operations("save"))
    assert saved_bytes == directory_size(tmp_path / "run")
    restore = spans.operation("restore")
    save = spans.operation("save", step=4)
    assert [link.span_id for link in restore.links] == [save.span_id]
    assert restore.attributes[names.STEPS_SINCE] == 0
    assert len(spans.operations("save")) == 3
    assert {span.attributes[names.TASK_ID] for span in spans.operations()} == {str(tmp_path / "run")}


def test_killed_save_and_the_restore_from_what_it_left(observation, tmp_path):
    """A process that is killed while it saves is reported in that phase, and the restore from its checkpoint as incomplete."""
    assert observation.run("trainer_restart.py", tmp_path / "run", "_save_rng_state") == [-9, 1]
    spans = observation.spans()
    save, restore = spans.operation("save", step=4), spans.operation("restore", step=4)
    assert (save.attributes[names.OUTCOME], save.attributes[names.ERROR_PHASE]) == ("interrupted", "write")
    assert restore.attributes[names.ERROR_CODE] == "integrity.incomplete"
    assert restore.links == ()
