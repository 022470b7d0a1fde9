"""Keras: the files of the checkpoint are the oracle of what is recorded."""

from __future__ import annotations

import functools
import json
import os
import zipfile
from collections import Counter
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras.callbacks import BackupAndRestore, ModelCheckpoint, OrbaxCheckpoint

import ckpt_observe
from ckpt_observe.instrument.checkpoint_file import LOST_FILE
from ckpt_observe.instrument.keras import KerasInstrumentor
from ckpt_observe.instrument.orbax import OrbaxInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]
DATA = np.ones((8, 3)), np.ones((8, 1))


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = KerasInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


def create_model(width=4, **arguments):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(width, name="hidden", **arguments), keras.layers.Dense(1, name="out")])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def fit(*callbacks, epochs=2, model=None):
    model = model or create_model()
    model.fit(*DATA, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


def phases(recording):
    return {span.attributes[names.PHASE] for span in recording.spans() if names.PHASE in span.attributes}


def directory_size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def stored_bytes(path):
    """The bytes of the variables of the model and of the optimizer in an HDF5 file."""
    sizes = Counter()
    with h5py.File(path) as file:
        file.visititems(lambda name, each: sizes.update({name.split("/")[0]: getattr(each, "nbytes", 0)}))
    return {"model": sum(sizes.values()) - sizes["optimizer"], "optimizer": sizes["optimizer"]}


@functools.cache
def target_model(width):
    return create_model(width)


def load(path, width=4):
    """Load a model, or weights into one, and return the exception, if any."""
    try:
        if "weights" in Path(path).name:
            target_model(width).load_weights(path)
        else:
            keras.saving.load_model(path)
    except Exception as error:
        return error
    return None


# Files


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5", "model"])
@pytest.mark.parametrize("kind", [str, Path])
def test_save_and_load_are_described_by_the_file(recording, operations, tmp_path, name, kind):
    """Sizes are those of the files and of the variables in them, and the load has the id and the step of the save."""
    path, model = tmp_path / name, fit()
    if "weights" in name:
        model.save_weights(kind(path))
        model.load_weights(kind(path))
    else:
        model.save(kind(path), zipped=name != "model")
        model = keras.saving.load_model(kind(path), compile=name != "model.h5")
    save, loaded = operations()
    assert [(each[names.OPERATION], each[names.OUTCOME]) for each in operations()] == [("save", "ok"), ("load", "ok")]
    for each in (save, loaded):
        assert (each[names.ID], each[names.LOCATION]) == (str(path), str(tmp_path))
        assert each[names.SIZE_STORED] == (directory_size(path) if path.is_dir() else path.stat().st_size)
        assert each[names.FORMAT] == ("hdf5" if name.endswith(".h5") else "keras")
    assert save[names.STEP] == 4
    if name != "model.h5":  # the old format does not say which variables are those of the optimizer
        assert loaded[names.STEP] == 4
        assert [loaded[each] for each in (names.TENSORS, names.TENSOR_SIZES)] == [
            save[each] for each in (names.TENSORS, names.TENSOR_SIZES)
        ]
        weights = path / "model.weights.h5" if path.is_dir() else path
        if name == "model.keras":
            weights = zipfile.ZipFile(path).extract("model.weights.h5", tmp_path)
        assert dict(zip(save[names.KEY_NAMES], save[names.KEY_SIZES], strict=True)) == stored_bytes(weights)
    assert {"write", "read"} <= phases(recording)
    if name == "model.keras":
        assert phases(recording) == {"serialize", "stage", "write", "read", "deserialize", "apply"}


def test_names_of_the_same_functions(operations, tmp_path):
    """Each function is observed under all its names, and counted once."""
    model, path, weights = create_model(), str(tmp_path / "a.keras"), str(tmp_path / "a.weights.h5")
    for module in (keras.saving, keras.models):
        module.save_model(model, path)
        module.load_model(path)
    keras.saving.save_weights(model, weights)
    keras.saving.load_weights(model, filepath=weights)
    assert [each[names.OPERATION] for each in operations()] == ["save", "load"] * 3


@pytest.mark.parametrize("name", ["model.weights.json", "model.weights.h5"])
def test_sharded_weights_have_the_size_of_all_their_files(operations, tmp_path, name):
    """The map and its shards are one checkpoint, whose path ends in `.json`. A shard of an earlier save is no part of it."""
    (tmp_path / "model_00099.weights.h5").write_bytes(b"of an earlier save")
    fit().save_weights(tmp_path / name, max_shard_size=1e-7)
    path = tmp_path / "model.weights.json"
    create_model().load_weights(path)
    shards = [*tmp_path.glob("model_0000*.weights.h5")]
    assert len(shards) > 1
    for each in operations():
        assert each[names.ID] == str(path)
        assert each[names.SIZE_STORED] == path.stat().st_size + sum(shard.stat().st_size for shard in shards)


def test_inside_another_operation_a_file_is_a_phase(recording, tmp_path):
    """A program that records its own save, which saves a model, has one save."""
    with ckpt_observe.checkpoint("save"):
        create_model().save(tmp_path / "a.keras")
    assert {span.name for span in recording.spans()} == {"checkpoint.save", "checkpoint.write"}


# Runs


def test_checkpoints_of_a_run(recording, operations, tmp_path):
    """Each checkpoint of `ModelCheckpoint` is one save in the trace of the run, whose id is their directory."""
    fit(ModelCheckpoint(tmp_path / "{epoch}.keras"), ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True))
    saves = operations()
    assert [(each[names.OPERATION], each[names.STEP]) for each in saves] == [("save", 2), ("save", 2), ("save", 4), ("save", 4)]
    assert {each[names.ID]: each[names.SIZE_STORED] for each in saves} == {str(path): path.stat().st_size for path in tmp_path.iterdir()}
    assert {(each[names.TASK_NAME], each[names.TASK_ID]) for each in saves} == {("Sequential", str(tmp_path))}
    assert len({span.trace_id for span in recording.spans()}) == 1


def test_run_without_checkpoints_is_not_recorded(recording, tmp_path):
    """Programs that train without checkpoints may call `fit` thousands of times. A model that is not better is not saved either."""
    fit()
    assert recording.spans() == []
    fit(ModelCheckpoint(tmp_path / "best.keras", monitor="loss", save_best_only=True, initial_value_threshold=0.0))
    assert [names.OPERATION in span.attributes for span in recording.spans()] == [False]


class StopAfter(keras.callbacks.Callback):
    """Ends a run early, as a crash would."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise RuntimeError("stopped")


@pytest.fixture
def interrupted(operations, tmp_path):
    """The backup of a run that stopped after its first epoch."""
    backup = tmp_path / "backup"
    with pytest.raises(RuntimeError, match="stopped"):
        fit(BackupAndRestore(backup), StopAfter(0))
    return backup


def test_backup_is_one_save_and_one_restore(recording, operations, interrupted):
    """Weights and epoch are one checkpoint. A run that begins restores nothing; one that ends removes the backup."""
    size = directory_size(interrupted)
    model = fit(BackupAndRestore(interrupted))
    assert int(model.optimizer.iterations) == 4
    save, restore, second, delete = operations()
    assert [each[names.OPERATION] for each in operations()] == ["save", "restore", "save", "delete"]
    assert [each.get(names.STEP) for each in operations()] == [2, 2, 4, None]
    for each in operations():
        assert (each[names.ID], each[names.SAVER], each[names.TASK_ID]) == (str(interrupted), "BackupAndRestore", str(interrupted))
    assert [save[names.SIZE_STORED], restore[names.SIZE_STORED]] == [size, size]
    assert delete[names.SIZE_FREED] == second[names.SIZE_STORED]
    assert phases(recording) == {"write", "read", "apply"}


def test_damaged_backup_with_an_older_copy(operations, tmp_path):
    """Keras falls back on the copy. The failed restore is recorded as well as the one that worked."""
    backup = tmp_path / "backup"
    with pytest.raises(RuntimeError, match="stopped"):
        fit(BackupAndRestore(backup, double_checkpoint=True), StopAfter(1), epochs=3)
    (backup / "latest.weights.h5").write_bytes(b"")
    fit(BackupAndRestore(backup, double_checkpoint=True), epochs=2)
    failed, restored = [each for each in operations() if each[names.OPERATION] == "restore"]
    assert failed[names.ERROR_CLASS] == "integrity"
    assert (restored[names.OUTCOME], restored[names.STEP]) == ("ok", 2)


def test_epoch_that_cannot_be_read(operations, interrupted):
    """The second file of a backup is read after the weights."""
    (interrupted / "training_metadata.json").write_text('{"epoch": ')
    with pytest.raises(json.JSONDecodeError):
        fit(BackupAndRestore(interrupted))
    assert operations()[1][names.ERROR_CODE] == "integrity.truncated"


def test_orbax_checkpoints_are_counted_once(operations, tmp_path):
    """`OrbaxCheckpoint` saves with Orbax in the trace of the run; a model that is loaded from there is one load of Keras."""
    instrumentor = OrbaxInstrumentor()
    instrumentor.instrument()
    try:
        fit(OrbaxCheckpoint(tmp_path / "orbax", save_freq="epoch"))
        saves = len(operations())
        keras.saving.load_model(tmp_path / "orbax")
    finally:
        instrumentor.uninstrument()
    assert {(each[names.SYSTEM], each[names.OPERATION]) for each in operations()[:saves]} == {("orbax", "save")}
    [loaded] = operations()[saves:]
    assert (loaded[names.SYSTEM], loaded[names.OPERATION], loaded[names.TENSORS]) == ("keras", "load", 14)


# Damaged checkpoints


@pytest.fixture(params=["model.keras", "model.weights.h5", "model.h5"])
def saved(request, operations, tmp_path):
    path = tmp_path / request.param
    if "weights" in request.param:
        create_model().save_weights(path)
    else:
        create_model().save(path)
    return path


def last(operations):
    return operations()[-1]


def test_truncated_file(operations, saved):
    """Wherever a file ends too early, the load says so, while reading."""
    data = saved.read_bytes()
    for length in range(1000, len(data), len(data) // 7):
        saved.write_bytes(data[:length])
        assert load(saved) is not None
        assert (last(operations)[names.ERROR_CODE], last(operations)[names.ERROR_PHASE]) == ("integrity.truncated", "read")


def test_corrupt_file(operations, saved):
    """Bytes that are not what was saved never give an unknown error."""
    for content in (b"\0" * 500, b"garbage" * 100, b"PK\x03\x04" + b"\0" * 300, b"\x89HDF\r\n\x1a\n" + b"\0" * 300):
        saved.write_bytes(content)
        assert load(saved) is not None
        assert last(operations)[names.ERROR_CLASS] == "integrity"


def test_damaged_byte(operations, saved):
    """Wherever a byte has changed, a load that fails names damage, or a model that does not fit."""
    data = saved.read_bytes()
    for position in range(0, len(data), len(data) // 61):
        saved.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        load(saved)
    codes = Counter(each.get(names.ERROR_CODE) for each in operations()[1:])
    allowed = {"integrity.malformed", "integrity.checksum_mismatch", "integrity.incomplete", "integrity.truncated"}
    assert codes.keys() - {None} <= allowed | {"serialization.malformed", "compatibility.changed_program"}, codes
    if saved.suffix == ".keras":
        assert codes["integrity.checksum_mismatch"] > 50


def test_missing_file(operations, saved):
    """A checkpoint that does not exist is reported as such, although Keras raises three kinds of exceptions."""
    saved.unlink()
    assert load(saved) is not None
    assert last(operations)[names.ERROR_CODE] == "not_found.checkpoint"


def rewrite(path, target, **changes):
    """Copy a `.keras` file with other contents of some of its files; None leaves the file out."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for entry in source.infolist():
            change = changes.get(entry.filename.partition(".")[0], lambda data: data)
            if change is not None:
                archive.writestr(entry.filename, change(source.read(entry)))


def half(data):
    return data[: len(data) // 2]


def without_class(data):
    return data.replace(b'"class_name": "Dense"', b'"class_name": "Denser"')


def newer(_data):
    return json.dumps({"keras_version": "99.1.0", "date_saved": ""}).encode()


@pytest.mark.parametrize(
    ("changes", "code", "phase"),
    [
        ({"config": None}, "integrity.incomplete", "read"),
        ({"model": None}, "integrity.incomplete", "read"),
        ({"model": half}, "integrity.truncated", "read"),
        ({"config": half}, "integrity.truncated", "deserialize"),
        ({"config": without_class}, "compatibility.changed_program", "deserialize"),
        ({"config": without_class, "metadata": newer}, "compatibility.newer_version", "deserialize"),
    ],
    ids=["no config", "no weights", "half weights", "half config", "unknown class", "newer version"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_parts_of_a_model(operations, tmp_path, changes, code, phase, zipped):
    """Parts that are missing, incomplete, of another program or of a newer version are told apart, in a file and in a directory."""
    path = tmp_path / "model.keras"
    create_model().save(path)
    rewrite(path, tmp_path / "changed.keras", **changes)
    target = tmp_path / "changed.keras"
    if not zipped:
        zipfile.ZipFile(target).extractall(tmp_path / "changed")
        target = tmp_path / "changed"
    error = load(target)
    assert (last(operations)[names.ERROR_CODE], last(operations)[names.ERROR_PHASE]) == (code, phase), repr(error)


def test_file_of_a_newer_version_that_can_be_loaded(operations, tmp_path):
    """Control: the version alone is not an error."""
    create_model().save(tmp_path / "model.keras")
    rewrite(tmp_path / "model.keras", tmp_path / "changed.keras", metadata=newer)
    assert load(tmp_path / "changed.keras") is None
    assert last(operations)[names.OUTCOME] == "ok"


def test_shard_that_is_missing(operations, tmp_path):
    """A sharded checkpoint without one of its files is incomplete."""
    create_model().save_weights(tmp_path / "model.weights.json", max_shard_size=1e-7)
    (tmp_path / "model_00001.weights.h5").unlink()
    assert load(tmp_path / "model.weights.json") is not None
    assert last(operations)[names.ERROR_CODE] == "integrity.incomplete"


class OwnLayer(keras.layers.Layer):
    def call(self, inputs):
        return inputs


def test_classes_that_are_not_loaded(operations, tmp_path):
    """A class that is not registered is not in the program; a lambda is refused."""
    for layer in (OwnLayer(), keras.layers.Lambda(lambda each: each)):
        keras.Sequential([keras.Input((3,)), layer]).save(tmp_path / "model.keras")
        assert load(tmp_path / "model.keras") is not None
    failures = [each for each in operations() if each[names.OPERATION] == "load"]
    assert [each[names.ERROR_CODE] for each in failures] == ["compatibility.changed_program", "serialization.unsupported_type"]
    assert {each[names.ERROR_PHASE] for each in failures} == {"deserialize"}


def test_changed_model(operations, tmp_path):
    """Weights of another shape do not fit. With `skip_mismatch`, Keras only warns, and the layers are named."""
    path = tmp_path / "model.weights.h5"
    create_model().save_weights(path)
    assert isinstance(load(path, width=7), ValueError)
    create_model(width=7).load_weights(path, skip_mismatch=True)
    _, failed, altered = operations()
    assert failed[names.ERROR_CODE] == "compatibility.changed_program"
    assert altered[names.OUTCOME] == "ok"
    assert [name.partition("_")[0] for name in altered[names.ALTERED_KEYS]] == ["adam", "hidden", "out"]


# Saves that fail


class Unserializable(keras.layers.Layer):
    def get_config(self):
        return {**super().get_config(), "lock": object()}

    def call(self, inputs):
        return inputs


def test_model_that_cannot_be_serialized_costs_the_previous_file(operations, tmp_path):
    """Keras has opened the file when it finds out, so the checkpoint before is gone, which the save says."""
    path = tmp_path / "model.keras"
    create_model().save(path)
    with pytest.raises(TypeError):
        keras.Sequential([keras.Input((3,)), Unserializable()]).save(path)
    assert load(path) is not None
    failed = operations()[1]
    assert (failed[names.ERROR_CODE], failed[names.ERROR_PHASE]) == ("serialization.unsupported_type", "serialize")
    assert failed[names.ERROR_IMPACT] == LOST_FILE
    assert names.SIZE_STORED not in failed


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing/model.keras", "not_found.path"),
        ("missing/model.weights.h5", "not_found.path"),
        ("model.txt", "configuration.invalid"),
        ("weights.txt", "configuration.invalid"),
    ],
)
def test_file_that_cannot_be_created(operations, tmp_path, name, code):
    """A wrong path has no impact on any checkpoint."""
    model = create_model()
    with pytest.raises((OSError, ValueError)):
        (model.save_weights if "weights" in name else model.save)(tmp_path / name)
    assert last(operations)[names.ERROR_CODE] == code
    assert names.ERROR_IMPACT not in last(operations)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_device_without_space(operations, tmp_path, name):
    """A full device is reported as such, also by the HDF5 library."""
    os.symlink("/dev/full", tmp_path / name)
    model = create_model()
    with pytest.raises(OSError, match="No space"):
        (model.save_weights if "weights" in name else model.save)(tmp_path / name)
    assert last(operations)[names.ERROR_CODE] == "storage.no_space"
