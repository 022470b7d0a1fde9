"""joblib: the file is the oracle of what is recorded."""

from __future__ import annotations

import io
import os
import pickle
import threading
from importlib.metadata import version
from pathlib import Path

import joblib
import numpy as np
import pytest

import ckpt_observe
from ckpt_observe.instrument.checkpoint_file import LOST_FILE
from ckpt_observe.instrument.object_files import JoblibInstrumentor
from ckpt_observe.libraries import select
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries
CONTENT = "what the state contains"


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = JoblibInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


class TestContract(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.object_files:JoblibInstrumentor"
    use = "import io, joblib; file = io.BytesIO(); joblib.dump([1], file); file.seek(0); assert joblib.load(file) == [1]"


def test_version():
    """The tests run with the version that the table names."""
    assert version("joblib") == "1.6.0"


def test_is_observed_only_on_request():
    """joblib also stores datasets, so it is not observed by default."""
    assert "joblib" not in select("")
    assert "joblib" in select("default,+joblib")


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 1), ("xz", 1)], ids=str)
@pytest.mark.parametrize("kind", [str, Path])
def test_sizes_are_those_of_the_file(operations, tmp_path, compress, kind):
    """Save and load report the path and the size of the file, whatever is stored and however it is compressed."""
    path = tmp_path / "model.joblib"
    value = {"weights": np.arange(1000.0), "note": CONTENT}
    assert joblib.dump(value, kind(path), compress=compress) == [str(path)]
    loaded = joblib.load(kind(path))
    assert (loaded["weights"] == value["weights"]).all()
    save, load = operations()
    assert (save[names.OPERATION], load[names.OPERATION]) == ("save", "load")
    for attributes in (save, load):
        assert attributes[names.SIZE_STORED] == path.stat().st_size
        assert attributes[names.LOCATION] == str(path)
        assert (attributes[names.SYSTEM], attributes[names.STORE], attributes[names.OUTCOME]) == ("joblib", "file", "ok")


def test_sizes_of_file_objects_are_not_guessed(operations, tmp_path):
    """A file object may not be flushed, so its size is unknown. Its name is reported if it has one."""
    with (tmp_path / "model.joblib").open("wb") as file:
        joblib.dump([1], file)
    joblib.dump([1], io.BytesIO())
    named, unnamed = operations()
    assert named[names.LOCATION] == str(tmp_path / "model.joblib")
    assert names.LOCATION not in unnamed
    assert not {names.SIZE_STORED} & (named.keys() | unnamed.keys())


class Unpicklable:
    """An object that fails while it is pickled, after others have been written."""

    def __init__(self, error):
        self.error = error

    def __getstate__(self):
        raise self.error


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (threading.Lock(), "serialization.unsupported_type"),
        (lambda: None, "serialization.unsupported_type"),
        (Unpicklable(TypeError("no state")), "serialization.unsupported_type"),
        (Unpicklable(MemoryError()), "memory.exhausted"),
        (Unpicklable(KeyboardInterrupt()), "cancelled.requested"),
    ],
    ids=["lock", "lambda", "type", "memory", "interrupt"],
)
def test_failed_dump_costs_the_previous_file(operations, tmp_path, value, code):
    """The dump fails with a classified error and no size, and its impact is told: the file cannot be loaded any more."""
    path = tmp_path / "model.joblib"
    joblib.dump([CONTENT] * 9, path)
    with pytest.raises(BaseException) as raised:
        joblib.dump([np.arange(9), value], path)
    with pytest.raises((EOFError, ValueError, pickle.UnpicklingError)):
        joblib.load(path)
    _, failed, load = operations()
    assert failed[names.ERROR_CODE] == code
    assert failed[names.ERROR_TYPE] == type(raised.value).__name__
    assert failed[names.ERROR_IMPACT] == LOST_FILE
    assert names.SIZE_STORED not in failed
    assert load[names.ERROR_CODE] == "integrity.truncated"


def test_dump_that_does_not_touch_the_file_has_no_such_impact(operations, tmp_path):
    """If joblib fails before it opens the file, nothing is lost."""
    path = tmp_path / "model.joblib"
    joblib.dump([1], path)
    with pytest.raises(ValueError, match="compress level"):
        joblib.dump([2], path, compress=11)
    _, failed = operations()
    assert failed[names.ERROR_CODE] == "configuration.invalid"
    assert names.ERROR_IMPACT not in failed
    assert joblib.load(path) == [1]


@pytest.mark.parametrize("compress", [0, 3], ids=["plain", "zlib"])
def test_truncated_file(operations, tmp_path, compress):
    """Wherever a file ends too early, the load reports that, and not an unknown error."""
    path = tmp_path / "model.joblib"
    joblib.dump({"weights": np.arange(100.0), "text": [CONTENT] * 9}, path, compress=compress)
    data = path.read_bytes()
    for length in range(0, len(data) - 50, 7):  # joblib notices neither a missing checksum nor the end of compressed data
        path.write_bytes(data[:length])
        with pytest.raises(Exception):  # noqa: B017 - joblib raises many types
            joblib.load(path)
    codes = {attributes[names.ERROR_CODE] for attributes in operations()[1:]}
    assert codes <= {"integrity.truncated", "serialization.malformed", "compression.malformed"}
    assert "integrity.truncated" in codes


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 50,
        b"not a pickle",
        b"\x80\x05garbage",
        b"\x80\xff" + b"]." * 9,
        b"\x89PNG\r\n\x1a\n",
        b"\x1f\x8b" + b"\0" * 50,
        b"cno_module\nname\n.",
    ],
    ids=["zeros", "text", "opcodes", "protocol", "image", "gzip", "module"],
)
def test_corrupt_file(operations, tmp_path, data):
    """Bytes that are not what was saved never give an unknown error."""
    (tmp_path / "model.joblib").write_bytes(data)
    with pytest.raises(Exception) as raised:
        joblib.load(tmp_path / "model.joblib")
    [load] = operations()
    assert load[names.ERROR_TYPE] == type(raised.value).__name__
    is_missing = isinstance(raised.value, ModuleNotFoundError)
    assert load[names.ERROR_CLASS] in ({"configuration"} if is_missing else {"serialization", "integrity", "compression"})


@pytest.mark.parametrize(
    ("path", "code"), [("missing/model", "not_found.path"), (".", "configuration.invalid"), ("/proc/model", "not_found.path")]
)
def test_path_that_cannot_be_opened(operations, tmp_path, path, code):
    """Errors of the file system have their own codes."""
    with pytest.raises(OSError):
        joblib.dump([1], tmp_path / path)
    with pytest.raises(OSError):
        joblib.load(tmp_path / path)
    assert [attributes[names.ERROR_CODE] for attributes in operations()] == [code, code]


def test_full_device(operations):
    """A full device is a lack of space."""
    with pytest.raises(OSError, match="No space left"):
        joblib.dump([CONTENT] * 99, "/dev/full")
    assert operations()[0][names.ERROR_CODE] == "storage.no_space"


def test_dump_inside_another_operation_is_its_phase(recording, operations, tmp_path):
    """A file that is part of another library's checkpoint is not counted as a checkpoint."""
    with ckpt_observe.checkpoint("save"):
        joblib.dump([1], tmp_path / "part")
    with ckpt_observe.checkpoint("load"):
        joblib.load(tmp_path / "part")
    assert [attributes[names.OPERATION] for attributes in operations()] == ["save", "load"]
    assert {attributes[names.SYSTEM] for attributes in operations()} == {"custom"}
    assert [span.name for span in recording.spans() if names.PHASE in span.attributes] == ["checkpoint.write", "checkpoint.read"]


def test_cache_and_workers_are_not_observed(operations, tmp_path):
    """A cache and the exchange of arrays with worker processes are no checkpoints."""
    memory = joblib.Memory(tmp_path, verbose=0)
    assert memory.cache(os.path.basename)("a/b") == "b"
    arrays = joblib.Parallel(n_jobs=2, max_nbytes=10)(joblib.delayed(np.sum)(np.ones(1000)) for _ in range(2))
    assert arrays == [1000.0, 1000.0]
    assert operations() == []


def test_example(run_example):
    """The example leaves a save and a load of the same file."""
    save, load = run_example("joblib_model.py")
    assert (save[names.OPERATION], load[names.OPERATION]) == ("save", "load")
    assert save[names.LOCATION] == load[names.LOCATION]
    assert save[names.SIZE_STORED] == load[names.SIZE_STORED]
