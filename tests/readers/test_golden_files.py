"""Files that the real libraries wrote (`golden/make_training.py`), and what the libraries themselves say about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_observe import readers
from ckpt_observe.readers.contents import walk

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
TENSORS = {name: (dtype, tuple(shape), size) for name, (dtype, shape, size) in EXPECTED["tensors"].items()}
SAFETENSORS_DTYPES = {"F32": "float32", "BF16": "bfloat16", "BOOL": "bool", "I64": "int64"}
FORMATS = {
    "torch.pt": "torch",
    "legacy.pt": "torch-legacy",
    "model.safetensors": "safetensors",
    "dcp": "dcp",
    "orbax": "orbax",
    "model.keras": "keras",
    "arrays.npz": "npz",
    "compressed.npz": "npz",
    "array.npy": "npy",
    "protocol0.pkl": "pickle",
    "protocol2.pkl": "pickle",
    "protocol5.pkl": "pickle",
    "plain.joblib": "joblib",
    "zlib.joblib": "joblib",
    "bz2.joblib": "joblib",
    "xz.joblib": "joblib",
    "langgraph.db": "langgraph-sqlite",
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_file_is_recognized_and_adds_up(name):
    """Every golden file has its format, and its entries and other bytes are all of its bytes, at each depth."""
    for depth in (1, 2, 5):
        contents = readers.read(GOLDEN / name, depth=depth)
        assert contents.format == FORMATS[name]
        assert sum(entry.size for entry in contents.entries) + contents.other_size == contents.size
        assert contents.other_size >= 0
        assert list(contents.entries) == sorted(contents.entries, key=lambda entry: (-entry.size, entry.name))
        for path, entry in walk(contents.entries):
            assert len(path) <= depth
            assert sum(child.size for child in entry.children) <= entry.size


def test_names_do_not_matter(tmp_path):
    """A file with another name, or a link to it, is recognized by its content."""
    for name in ("torch.pt", "model.safetensors", "protocol2.pkl", "xz.joblib", "langgraph.db", "array.npy"):
        (tmp_path / f"{name}.backup").write_bytes((GOLDEN / name).read_bytes())
        (tmp_path / "latest").unlink(missing_ok=True)
        (tmp_path / "latest").symlink_to(tmp_path / f"{name}.backup")
        assert readers.read(tmp_path / "latest").format == FORMATS[name]


@pytest.mark.parametrize("name", ["torch.pt", "legacy.pt"])
def test_tensors_of_torch(name):
    """Keys, dtypes, shapes and bytes are those that torch reports."""
    [model] = [entry for entry in readers.read(GOLDEN / name, depth=2).entries if entry.name == "model"]
    assert {entry.name: (entry.dtype, entry.shape, entry.size) for entry in model.children} == TENSORS


def test_tensors_of_safetensors():
    """The same for safetensors."""
    entries = readers.read(GOLDEN / "model.safetensors").entries
    assert {entry.name: (SAFETENSORS_DTYPES[entry.dtype], entry.shape, entry.size) for entry in entries} == TENSORS


def test_tensors_of_dcp():
    """Keys, dtypes and shapes of DCP. It stores a tensor as a file of torch.save, so its bytes are more."""
    entries = {entry.name.removeprefix("model."): entry for entry in readers.read(GOLDEN / "dcp").entries}
    assert entries.pop("epoch").type == "bytes"
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {name: row[:2] for name, row in TENSORS.items()}
    assert all(entry.size > TENSORS[name][2] for name, entry in entries.items())


def test_arrays_of_orbax():
    """Keys and shapes. The bytes of each array are unknown in OCDBT, and a warning says so."""
    contents = readers.read(GOLDEN / "orbax")
    assert {entry.name: entry.shape for entry in contents.entries} == {"params/w": (4, 8), "params/b": (8,), "step": None}
    assert "OCDBT" in contents.warnings[0]


@pytest.mark.parametrize(
    "name", ["protocol0.pkl", "protocol2.pkl", "protocol5.pkl", "plain.joblib", "zlib.joblib", "bz2.joblib", "xz.joblib"]
)
def test_arrays_in_pickles(name):
    """Arrays in pickles of all protocols and in files of joblib have their dtype and shape; other values their type."""
    entries = {entry.name: entry for entry in readers.read(GOLDEN / name, depth=2).entries}
    assert (entries["a"].type, entries["a"].dtype, entries["a"].shape) == ("numpy.ndarray", "<f8", (200,))
    assert entries["a"].size >= 1600
    assert entries["o"].dtype.lstrip("|<") == "O8"
    children = {child.name: child for child in entries["b"].children}
    assert (children["c"].dtype, children["c"].shape) == ("<i4", (3, 4))
    assert (children["d"].type, children["d"].items) == ("list", 3)
    assert entries["text"].type == "str"


@pytest.mark.parametrize("name", ["arrays.npz", "compressed.npz"])
def test_arrays_of_numpy(name):
    """The bytes of an array are those of its data, also if it is compressed."""
    entries = readers.read(GOLDEN / name).entries
    assert [(entry.name, entry.dtype, entry.shape, entry.size) for entry in entries] == [("a", "<f8", (20,), 160), ("b", "<i4", (2, 3), 24)]


def test_weights_of_keras():
    """The datasets of the HDF5 file inside have names, dtype, shape and bytes, if the depth asks for them."""
    [weights] = [entry for entry in readers.read(GOLDEN / "model.keras", depth=2).entries if entry.name == "model.weights.h5"]
    assert {entry.name: (entry.dtype, entry.shape, entry.size) for entry in weights.children} == {
        "layers/dense/vars/0": ("float32", (4, 2), 32),
        "layers/dense/vars/1": ("float32", (2,), 8),
    }
    assert weights.items == 2
    [weights] = [entry for entry in readers.read(GOLDEN / "model.keras").entries if entry.name == "model.weights.h5"]
    assert (weights.items, weights.children) == (2, ())


def test_difference_of_two_files():
    """Two files of one format: checksums of the format tell which arrays are the same."""
    result = readers.diff(readers.read(GOLDEN / "arrays.npz"), readers.read(GOLDEN / "compressed.npz"))
    assert result.changes == ()
    assert result.unchanged == (("a",), ("b",))
    result = readers.diff(readers.read(GOLDEN / "arrays.npz"), readers.read(GOLDEN / "array.npy"))
    assert [(change.path, change.kind, change.growth) for change in result.changes] == [
        (("a",), "removed", -160),
        (("array",), "added", 24),
        (("b",), "removed", -24),
    ]
