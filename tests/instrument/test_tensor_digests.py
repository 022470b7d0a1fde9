"""Digests of samples of tensors: the same places in save and load, only memory of the CPU, and a reason for each tensor without one."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from ckpt_observe.instrument import tensor_digests
from ckpt_observe.instrument.checkpoint_file import CheckpointFile
from ckpt_observe.instrument.file_state import set_state
from ckpt_observe.instrument.tensor_digests import NoSampleError, digest_tensor, sample_places
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names


class Tensor:
    """Looks like a tensor of torch, with real memory."""

    layout, dtype, shape, is_quantized, nbytes = "torch.strided", "torch.uint8", (), False, 0

    def __init__(self, content, device="cpu", contiguous=True):
        self._memory = ctypes.create_string_buffer(content, max(len(content), 1))
        self.shape, self.device, self._contiguous = (len(content),), SimpleNamespace(type=device), contiguous

    def is_contiguous(self):
        return self._contiguous

    def is_conj(self):
        return False

    is_neg = is_conj

    def numel(self):
        return self.shape[0]

    def element_size(self):
        return 1

    def data_ptr(self):
        assert self.device.type == "cpu", "the memory of a device was asked for"
        return ctypes.addressof(self._memory)

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=self.data_ptr, nbytes=self.numel, _cdata=id(self))


Tensor.__module__, Tensor.__qualname__ = "torch", "Tensor"


@pytest.fixture
def describe(recording, monkeypatch):
    """A function that returns the summary and the attributes of a state in a file."""
    monkeypatch.setattr(recorder, "tensor_digests", True)

    def describe_state(state, path="/runs/a.pt"):
        attributes = {}
        operation = SimpleNamespace(details=CheckpointFile(path), set=attributes.update)
        set_state(operation, state)
        return operation.details.tensors, attributes

    return describe_state


@pytest.mark.parametrize("size", [1, 4096, 4097, 5000, 10**6, 10**12])
def test_places(size):
    """At most 4 KiB inside the tensor, with its beginning and its end; the same ones each time."""
    places = sample_places(size)
    tensor_digests.sample_places.cache_clear()
    assert sample_places(size) == places
    assert sum(length for _, length in places) <= 4096
    assert places[0][0] == 0
    assert sum(places[-1]) == size
    assert all(start >= 0 and start + length <= size for start, length in places)


def test_empty_tensor():
    """It has a digest: there is nothing that could differ."""
    assert sample_places(0) == ()
    assert digest_tensor(Tensor(b"")) == digest_tensor(Tensor(b""))


@pytest.mark.parametrize("size", [100, 100_000])
def test_content_at_a_sampled_place_counts(size):
    """Equal contents have equal digests. A change at a sampled place is noticed, and one elsewhere is not."""
    content = bytearray(size)
    before = digest_tensor(Tensor(bytes(content)))
    assert digest_tensor(Tensor(bytes(content))) == before
    sampled = {start + offset for start, length in sample_places(size) for offset in range(length)}
    for place in (0, size - 1, *sorted(sampled)[:: len(sampled) // 5]):
        changed = bytearray(content)
        changed[place] = 1
        assert digest_tensor(Tensor(bytes(changed))) != before
    for place in sorted(set(range(size)) - sampled)[:1]:
        content[place] = 1
        assert digest_tensor(Tensor(bytes(content))) == before, "the control: not all bytes are read"


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (Tensor(b"x", device="cuda"), "on device cuda"),
        (Tensor(b"x", device="meta"), "on device meta"),
        (Tensor(b"x", contiguous=False), "not contiguous"),
        (SimpleNamespace(), "other kind of tensor"),
    ],
)
def test_tensors_without_a_sample(tensor, reason):
    """The memory of a device is never asked for, because that would wait for the device."""
    with pytest.raises(NoSampleError, match=reason):
        digest_tensor(tensor)


def test_memory_outside_the_storage_is_not_read(monkeypatch):
    """A tensor whose address is not in its memory has no sample: a wrong address would end the process."""
    tensor = Tensor(bytes(100))
    start = tensor.data_ptr()
    storage = SimpleNamespace(data_ptr=lambda: start, nbytes=lambda: 100)
    monkeypatch.setattr(tensor, "untyped_storage", lambda: storage)
    for address in (0, start - 1, start + 1):
        monkeypatch.setattr(tensor, "data_ptr", lambda address=address: address)
        with pytest.raises(NoSampleError, match="without memory"):
            digest_tensor(tensor)


def test_reasons_are_attributes(describe):
    """A span says how many tensors have a digest, and why the others have none."""
    state = {"a": Tensor(b"x"), "b": Tensor(b"y", "cuda"), "c": Tensor(b"z", "cuda"), "d": Tensor(b"u", contiguous=False)}
    summary, attributes = describe(state)
    assert attributes[names.TENSOR_DIGESTS] == 1
    assert attributes[names.TENSOR_DIGESTS_SKIPPED] == ["2 on device cuda", "1 not contiguous"]
    assert list(summary.contents) == ["a"]
    assert summary.tensors == {"a": "uint8[1]", "b": "uint8[1]", "c": "uint8[1]", "d": "uint8[1]"}


def test_other_content_is_named(describe):
    """A state that came back with other content differs in those tensors."""
    saved, _ = describe({"m": {"w": Tensor(b"123"), "b": Tensor(b"4")}})
    loaded, _ = describe({"m": {"w": Tensor(b"12?"), "b": Tensor(b"4")}})
    assert saved.compare(loaded) == {names.ALTERED_KEYS: ["m.w"], names.ALTERED_CONTENTS: ["m.w"]}


def test_nothing_is_read_by_default(describe, monkeypatch):
    """Without the setting, no content is read, and no attribute says anything about digests."""
    monkeypatch.setattr(recorder, "tensor_digests", False)
    monkeypatch.setattr(ctypes, "string_at", lambda *_: pytest.fail("content was read"))
    summary, attributes = describe({"w": Tensor(b"x")})
    assert (summary.contents, summary.tensors) == ({}, {"w": "uint8[1]"})
    assert not {names.TENSOR_DIGESTS, names.TENSOR_DIGESTS_SKIPPED} & attributes.keys()


def test_fault_of_a_tensor_does_not_reach_the_save(describe):
    """A kind of tensor that raises has no digest, and the others have one."""

    class Broken(Tensor):
        def is_contiguous(self):
            raise NotImplementedError("no such thing")

    Broken.__module__, Broken.__qualname__ = "torch", "Tensor"
    summary, attributes = describe({"broken": Broken(b"x"), "w": Tensor(b"y")})
    assert attributes[names.TENSOR_DIGESTS_SKIPPED] == ["1 not accessible"]
    assert list(summary.contents) == ["w"]


def test_arrays_of_numpy(describe):
    """Arrays in C order are sampled; views with gaps and arrays of objects are not."""
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(20.0)
    assert digest_tensor(array) == digest_tensor(array.copy())
    assert digest_tensor(array) != digest_tensor(array + 1)
    _, attributes = describe({"gaps": array[::2], "objects": numpy.array([{}]), "w": array})
    assert attributes[names.TENSOR_DIGESTS] == 1
    assert sorted(attributes[names.TENSOR_DIGESTS_SKIPPED]) == ["1 Python objects", "1 not contiguous"]


def test_no_summary_without_a_path(describe):
    """The state of a file object is described, and not compared with anything."""
    summary, attributes = describe({"w": Tensor(b"x")}, path=SimpleNamespace())
    assert summary is None
    assert attributes[names.TENSORS] == 1
