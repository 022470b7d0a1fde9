"""The readers look into files that the installed libraries wrote. The libraries themselves are the oracles."""

from __future__ import annotations

import zipfile

import h5py
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as orbax
import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp

from ckpt_observe import readers
from ckpt_observe.readers.contents import walk

pytestmark = pytest.mark.libraries

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
NEW_DTYPES = [torch.uint16, torch.float8_e4m3fn]
"""Those without a storage class of their own."""


def tensors(dtypes):
    return {str(dtype): torch.zeros(3, number + 1).to(dtype) for number, dtype in enumerate(dtypes)}


def described(state):
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes) for name, tensor in state.items()}


def entries_of(entries):
    return {entry.name: (entry.dtype, entry.shape, entry.size) for entry in entries}


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "legacy"])
def test_torch_save(tmp_path, is_new):
    """Keys, dtypes, shapes and bytes of all kinds of tensors."""
    state = tensors(DTYPES + NEW_DTYPES if is_new else DTYPES)
    torch.save(state, tmp_path / "a", _use_new_zipfile_serialization=is_new)
    assert entries_of(readers.read(tmp_path / "a").entries) == described(state)


def test_shared_storages(tmp_path):
    """A storage counts once, for the first tensor that uses it."""
    weight = torch.arange(1000.0)
    torch.save({"a": weight, "b": weight[10:20], "c": torch.nn.Parameter(weight.reshape(10, 100))}, tmp_path / "a.pt")
    contents = readers.read(tmp_path / "a.pt")
    assert entries_of(contents.entries) == {"a": ("float32", (1000,), 4000), "b": ("float32", (10,), 0), "c": ("float32", (10, 100), 0)}


def test_a_model_and_its_optimizer(tmp_path):
    """The state of a real training step, compared with what torch.load returns."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 5))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    measured = {path: entry for path, entry in walk(readers.read(tmp_path / "a.pt", depth=4).entries) if entry.shape is not None}
    expected = {("model", name): value for name, value in loaded["model"].items()}
    for index, state in loaded["optimizer"]["state"].items():
        expected |= {("optimizer", "state", str(index), name): value for name, value in state.items()}
    assert {path: (tuple(entry.shape), entry.size) for path, entry in measured.items()} == {
        path: (tuple(value.shape), value.nbytes) for path, value in expected.items()
    }


def test_a_changed_tensor_is_found(tmp_path):
    """The checksums of the zip file tell which tensor changed, without reading any."""
    state = tensors(DTYPES)
    torch.save(state, tmp_path / "old.pt")
    state["torch.float64"][0, 0] = 1.0
    torch.save(state, tmp_path / "new.pt")
    result = readers.diff(readers.read(tmp_path / "old.pt"), readers.read(tmp_path / "new.pt"))
    assert [(change.path, change.differs) for change in result.changes] == [(("torch.float64",), ("digest",))]
    assert result.unclear == ()


def test_safetensors(tmp_path):
    """The header that safetensors itself reads."""
    safetensors.torch.save_file(tensors(DTYPES), tmp_path / "a", {"format": "pt"})
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        expected = {name: (tuple(file.get_slice(name).get_shape()), file.get_tensor(name).nbytes) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    contents = readers.read(tmp_path / "a")
    assert {entry.name: (entry.shape, entry.size) for entry in contents.entries} == expected
    assert contents.metadata == metadata


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp(tmp_path):
    """The metadata that DCP itself reads."""
    dcp.save({"model": tensors(DTYPES), "epoch": 3}, checkpoint_id=tmp_path / "a", no_dist=True)
    metadata = dcp.FileSystemReader(tmp_path / "a").read_metadata()
    contents = readers.read(tmp_path / "a")
    expected = {}
    for name, value in metadata.state_dict_metadata.items():
        size = sum(info.length for index, info in metadata.storage_data.items() if index.fqn == name)
        is_tensor = hasattr(value, "properties")
        expected[name] = (str(value.properties.dtype).removeprefix("torch."), tuple(value.size), size) if is_tensor else ("", None, size)
    assert entries_of(contents.entries) == expected
    assert contents.size == sum(path.stat().st_size for path in (tmp_path / "a").iterdir())


@pytest.mark.parametrize("is_ocdbt", [True, False], ids=["ocdbt", "zarr"])
def test_orbax(tmp_path, is_ocdbt):
    """Keys and shapes of the tree. Bytes only if each array has a directory of its own."""
    tree = {"params": {"w": jnp.ones((4, 8)), "b": jnp.ones(8)}, "step": 7}
    with orbax.Checkpointer(orbax.PyTreeCheckpointHandler(use_ocdbt=is_ocdbt)) as checkpointer:
        checkpointer.save(tmp_path / "a", tree)
    contents = readers.read(tmp_path / "a")
    shapes = {entry.name: entry.shape for entry in contents.entries if entry.name != "step"}
    assert shapes == {"params/w": (4, 8), "params/b": (8,)}
    assert bool(contents.warnings) is is_ocdbt
    assert all(entry.size > 0 for entry in contents.entries) is not is_ocdbt
    assert contents.size == sum(path.stat().st_size for path in (tmp_path / "a").rglob("*") if path.is_file())


def test_numpy(tmp_path):
    """Arrays of numpy, also structured ones, ones in Fortran order, and ones of Python objects."""
    arrays = {
        "a": np.zeros((3, 4), "f4", order="F"),
        "b": np.zeros(3, [("x", "i4"), ("y", "f8")]),
        "c": np.array(["text"]),
        "d": np.array([None, 1]),
    }
    np.savez(tmp_path / "a", **arrays)
    contents = readers.read(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=True) as loaded:
        assert {entry.name: entry.shape for entry in contents.entries} == {name: loaded[name].shape for name in loaded}
        sizes = {name: loaded[name].nbytes for name in "abc"}
    assert {entry.name: entry.size for entry in contents.entries if entry.name in sizes} == sizes
    assert len(contents.warnings) == 1


def weights_of(path):
    contents = readers.read(path, depth=2)
    [weights] = [entry for entry in contents.entries if entry.name == "model.weights.h5"]
    return contents, {entry.name: (entry.dtype, entry.shape, entry.size) for entry in weights.children}


@pytest.mark.filterwarnings("ignore")  # of Keras
def test_keras_weights(tmp_path):
    """The datasets that h5py itself finds in a model with many layers and its optimizer: groups with several nodes, scalars, integers."""
    layers = [keras.layers.Dense(4) for _ in range(40)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0)
    model.save(tmp_path / "a.keras")
    contents, weights = weights_of(tmp_path / "a.keras")
    expected = {}
    with zipfile.ZipFile(tmp_path / "a.keras") as archive, h5py.File(archive.open("model.weights.h5")) as file:
        visit = lambda name, item: expected.update({name: (str(item.dtype), item.shape, item.nbytes)}) if hasattr(item, "dtype") else None  # noqa: E731
        file.visititems(visit)
    assert weights == expected
    assert len(weights) > 200
    assert contents.warnings == ()


def write_keras(path, weights):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", '{"class_name": "Sequential"}')
        archive.writestr("metadata.json", "{}")
        archive.write(weights, "model.weights.h5")
    return path


def test_other_datasets_of_hdf5(tmp_path):
    """Chunks, compression, cycles and links: bytes are those in the file, and a link to a name is not followed."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["half"] = np.ones((2, 2), "f2")
        file["unsigned"] = np.ones(3, "u1")
        file.create_dataset("chunks", data=np.zeros((100, 100)), chunks=(10, 10), compression="gzip")
        file.create_dataset("empty", (5,), "i8")
        file["group/loop"] = file["/"]
        file["soft"] = h5py.SoftLink("/half")
        stored = file["chunks"].id.get_storage_size()
    _, weights = weights_of(write_keras(tmp_path / "a.keras", tmp_path / "a.h5"))
    assert weights == {
        "half": ("float16", (2, 2), 8),
        "unsigned": ("uint8", (3,), 3),
        "chunks": ("float64", (100, 100), stored),
        "empty": ("int64", (5,), 0),
    }


@pytest.mark.parametrize("version", ["latest", "earliest"])
def test_newer_hdf5_is_a_warning(tmp_path, version):
    """A group with a link to another file has a newer version, too. The members are shown, and the warning names what to use."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.ones(3)
    with h5py.File(tmp_path / "a.h5", "w", libver=version) as file:
        file["group/a"] = np.ones(3)
        file["external"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/secret")
    contents, weights = weights_of(write_keras(tmp_path / "a.keras", tmp_path / "a.h5"))
    assert weights == {}
    assert "h5py" in contents.warnings[0]
