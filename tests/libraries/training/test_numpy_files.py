"""NumPy, on request: the file is the oracle of what is recorded."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest

from ckpt_observe.instrument.object_files import NumPyInstrumentor
from ckpt_observe.libraries import select
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = NumPyInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


class TestContract(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.object_files:NumPyInstrumentor"
    use = "import io, numpy; file = io.BytesIO(); numpy.save(file, numpy.ones(3)); file.seek(0); numpy.load(file)"


def test_is_observed_only_on_request():
    """NumPy stores datasets, too, so it is not observed by default; torch and safetensors are."""
    assert "numpy" not in select("")
    assert {"torch", "safetensors"} <= set(select(""))
    assert "numpy" in select("default,+numpy")


def test_files(operations, tmp_path):
    """Sizes and names are those of the files, with the suffix that NumPy appends."""
    np.save(tmp_path / "a", np.arange(100.0))
    np.savez(str(tmp_path / "b"), w=np.ones(10), b=np.zeros(5, dtype=np.int8))
    np.savez_compressed(tmp_path / "c.npz", w=np.zeros(1000))
    np.save(io.BytesIO(), np.ones(3))
    assert np.load(tmp_path / "a.npy").sum() == 4950
    with np.load(tmp_path / "b.npz") as arrays:
        assert sorted(arrays) == ["b", "w"]
    single, several, compressed, buffer, load, lazy = operations()
    for attributes, name in ((single, "a.npy"), (several, "b.npz"), (compressed, "c.npz"), (load, "a.npy"), (lazy, "b.npz")):
        assert attributes[names.SIZE_STORED] == (tmp_path / name).stat().st_size
        assert attributes[names.ID] == str(tmp_path / name)
    assert (several[names.KEY_NAMES], several[names.KEY_SIZES], several[names.FORMAT]) == (["w", "b"], [80, 5], "npz")
    assert (load[names.TENSORS], load[names.TENSOR_DTYPES]) == (1, ["float64"])
    assert names.ID not in buffer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NumPy does not close a file that is no archive
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_truncated_file(operations, tmp_path, suffix):
    """Wherever a file ends too early, the load says so, or that the file is malformed."""
    path = tmp_path / f"a{suffix}"
    np.savez(path, w=np.arange(50.0)) if suffix == ".npz" else np.save(path, np.arange(50.0))
    data = path.read_bytes()
    for length in range(0, len(data), 5):
        path.write_bytes(data[:length])
        with pytest.raises(Exception):  # noqa: B017 - NumPy raises many types
            np.load(path)
    codes = Counter(each[names.ERROR_CODE] for each in operations()[1:])
    assert codes.keys() <= {"integrity.truncated", "integrity.malformed", "serialization.malformed"}, codes


def test_file_of_a_newer_version(operations, tmp_path):
    """A file in a newer format is not damaged."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones(3))
    data = bytearray(path.read_bytes())
    data[6] = 9
    path.write_bytes(data)
    with pytest.raises(ValueError, match="format version"):
        np.load(path)
    assert operations()[1][names.ERROR_CODE] == "compatibility.newer_version"


def test_objects_are_refused(operations, tmp_path):
    """Arrays of objects that may not be pickled are values that the format cannot represent."""
    np.save(tmp_path / "a.npy", np.array([1, "a"], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(tmp_path / "a.npy")
    assert operations()[1][names.ERROR_CODE] == "serialization.unsupported_type"
