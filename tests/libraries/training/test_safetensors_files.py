"""safetensors: the header of the file is the oracle of what is recorded."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import ckpt_observe
from ckpt_observe.instrument.safetensors_files import SafetensorsInstrumentor
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries
EARLY_SAVE_FILE = safetensors.torch.save_file
"""As in a program that imports the function by name before it is observed."""


@pytest.fixture(autouse=True)
def instrumented(recording):
    instrumentor = SafetensorsInstrumentor()
    instrumentor.instrument()
    assert {report.state for report in instrumentor.report()} == {"patched"}
    yield
    instrumentor.uninstrument()


class TestContract(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.safetensors_files:SafetensorsInstrumentor"
    use = "import os, tempfile, numpy, safetensors.numpy as st; st.save_file({'a': numpy.ones(3)}, os.path.join(tempfile.mkdtemp(), 'a'))"


LIBRARIES = {
    "torch": (safetensors.torch, {"w": torch.arange(1000.0), "b": torch.zeros(10, dtype=torch.float16)}),
    "numpy": (safetensors.numpy, {"w": np.arange(1000.0), "b": np.zeros(10, dtype=np.float16)}),
}


@pytest.mark.parametrize("framework", LIBRARIES)
@pytest.mark.parametrize("kind", [str, Path])
def test_save_and_load_are_described_by_the_file(recording, operations, tmp_path, framework, kind):
    """Sizes are those of the file and of its header, and a load has the id of its save."""
    module, tensors = LIBRARIES[framework]
    path = tmp_path / "model.safetensors"
    module.save_file(tensors, kind(path), metadata={"format": "pt"})
    assert sorted(module.load_file(kind(path))) == ["b", "w"]
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    sizes = {name: entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}
    save, load = operations()
    assert (save[names.OPERATION], load[names.OPERATION]) == ("save", "load")
    for attributes in (save, load):
        assert attributes[names.SIZE_STORED] == len(data)
        assert (attributes[names.SYSTEM], attributes[names.FORMAT], attributes[names.ID]) == ("safetensors", "safetensors", str(path))
        assert dict(zip(attributes[names.KEY_NAMES], attributes[names.KEY_SIZES], strict=True)) == sizes
        assert attributes[names.TENSORS] == 2
    assert [span.attributes[names.PHASE] for span in recording.spans() if names.PHASE in span.attributes] == ["serialize", "write"]


def test_function_that_was_imported_before(operations, tmp_path):
    """A save by a reference from before is still observed, because the function that writes is."""
    EARLY_SAVE_FILE({"w": torch.ones(3)}, tmp_path / "a")
    safetensors.torch.save_model(torch.nn.Linear(2, 2), tmp_path / "b")
    early, model = operations()
    assert (early[names.OPERATION], early[names.SIZE_STORED]) == ("save", (tmp_path / "a").stat().st_size)
    assert (model[names.ID], model[names.KEY_NAMES]) == (str(tmp_path / "b"), ["weight", "bias"])


def test_inside_another_operation_a_file_is_a_phase(recording, tmp_path):
    """A program that records its own save, which writes a file of safetensors, has one save."""
    with ckpt_observe.checkpoint("save"):
        safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "a")
    assert {span.name for span in recording.spans()} == {"checkpoint.save", "checkpoint.write"}


def test_torch_load_of_a_safetensors_file_is_one_load(operations, tmp_path):
    """torch.load reads such a file with safetensors: one load, of torch."""
    from ckpt_observe.instrument.torch_files import TorchInstrumentor  # noqa: PLC0415

    safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors")
    instrumentor = TorchInstrumentor()
    instrumentor.instrument()
    try:
        torch.load(tmp_path / "a.safetensors")
    finally:
        instrumentor.uninstrument()
    assert [each[names.SYSTEM] for each in operations()] == ["safetensors", "torch"]


def test_truncated_file(operations, tmp_path):
    """Wherever a file ends too early, the load says so."""
    path = tmp_path / "a"
    safetensors.torch.save_file({"w": torch.arange(20.0)}, path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load_file(path)
    assert {each[names.ERROR_CODE] for each in operations()[1:]} == {"integrity.truncated"}


def test_file_of_a_newer_version(operations, tmp_path):
    """The format has no version. A type of tensors that the installed safetensors does not know is from a newer one."""
    path = tmp_path / "a"
    safetensors.torch.save_file({"w": torch.arange(20.0)}, path)
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F33"'))
    with pytest.raises(safetensors.SafetensorError, match="unknown variant"):
        safetensors.torch.load_file(path)
    assert operations()[1][names.ERROR_CODE] == "compatibility.newer_version"


def test_damaged_header(operations, tmp_path):
    """A flipped byte in the header is damage, and never an unknown error."""
    path = tmp_path / "a"
    safetensors.torch.save_file({"w": torch.arange(20.0)}, path)
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    for position in range(end):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        with pytest.raises((safetensors.SafetensorError, KeyError, ValueError)):
            safetensors.torch.load_file(path)
    codes = Counter(each[names.ERROR_CODE] for each in operations()[1:])
    assert codes.keys() <= {"integrity.truncated", "integrity.malformed"}, codes
    assert codes["integrity.malformed"] > end / 2


def test_saves_that_fail(operations, tmp_path):
    """Tensors that share memory, values that are not tensors, and missing directories are classified; the file before is unharmed."""
    path, tensor = tmp_path / "a", torch.ones(3)
    safetensors.torch.save_file({"w": tensor}, path)
    for tensors, target in (({"a": tensor, "b": tensor}, path), ({"a": 1}, path), ({"w": tensor}, tmp_path / "missing" / "a")):
        with pytest.raises((RuntimeError, ValueError, safetensors.SafetensorError)):
            safetensors.torch.save_file(tensors, target)
    with pytest.raises(FileNotFoundError):
        safetensors.torch.load_file(tmp_path / "missing")
    failures = operations()[1:]
    unsupported = "serialization.unsupported_type"
    assert [each[names.ERROR_CODE] for each in failures] == [unsupported, unsupported, "not_found.path", "not_found.path"]
    assert not [each for each in failures if names.ERROR_IMPACT in each]
