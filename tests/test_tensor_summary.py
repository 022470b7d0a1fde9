"""Summaries of tensors: what differs between a saved and a loaded state is named, and a summary is small."""

from __future__ import annotations

import base64
import random
import zlib

import pytest

from ckpt_observe import tensor_summary
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import OTHER
from ckpt_observe.tensor_summary import Tensor, TensorSummary, tensor_type


def summary(**types):
    """Return the summary of tensors by name; a value is a type, or a type and a digest."""
    rows = {name.replace("__", "."): value if isinstance(value, tuple) else (value,) for name, value in types.items()}
    return TensorSummary.of([Tensor(name, name, *row) for name, row in rows.items()])


def large(count, seed=0, **changes):
    """Return the summary of a model with this many tensors, with the digests of random content."""
    rng = random.Random(seed)
    tensors = [
        Tensor(name, name, changes.get(name, "bfloat16[4096,4096]"), f"{rng.getrandbits(32):08x}")
        for name in (f"model.layers.{number // 9}.part_{number % 9}.weight" for number in range(count))
    ]
    return TensorSummary.of([*tensors, Tensor("step.n", "step.n", "int64[]", "00000000")])


def test_type():
    """The name of the library is not part of a type, so that a file may be saved with torch and loaded with NumPy."""
    assert (tensor_type("torch.float32", (10, 3)), tensor_type("float32", ())) == ("float32[10,3]", "float32[]")


def test_equal_states_do_not_differ():
    """Neither does the order of the keys matter."""
    assert summary(a="f[1]", b__w="f[2]").compare(summary(b__w="f[2]", a="f[1]")) == {}


def test_differences_are_named():
    """Missing, new and converted tensors are altered keys; a change of type or shape is told with both types."""
    saved = summary(m__w="float32[2]", m__b="float32[1]", m__gone="int8[1]", n="int8[9]")
    loaded = summary(m__w="float16[2]", m__b="float32[4]", m__new="int8[1]", n="int8[9]")
    assert saved.compare(loaded) == {
        names.ALTERED_KEYS: ["m.b", "m.gone", "m.new", "m.w"],
        names.ALTERED_TYPES: ["float32[1] -> float32[4]", "float32[2] -> float16[2]"],
    }


def test_contents_are_compared_if_both_are_known():
    """A tensor without a digest on one side is not compared. A tensor of another type is named once."""
    saved = summary(same=("f[1]", "00"), other=("f[1]", "01"), unknown=("f[1]", ""), converted=("f[1]", "02"))
    loaded = summary(same=("f[1]", "00"), other=("f[1]", "ff"), unknown=("f[1]", "ee"), converted=("h[1]", "dd"))
    differences = saved.compare(loaded)
    assert (differences[names.ALTERED_KEYS], differences[names.ALTERED_CONTENTS]) == (["converted", "other"], ["other"])


def test_names_that_may_be_content_are_compared_and_not_told():
    """Such tensors are known as `_other_` only, and a difference among them is noticed."""
    saved, loaded = (TensorSummary.of([Tensor("a b", OTHER, "f[1]"), Tensor("c d", OTHER, type)]) for type in ("f[1]", "f[2]"))
    assert saved.compare(saved) == {}
    assert saved.compare(loaded) == {names.ALTERED_KEYS: [OTHER]}


@pytest.mark.parametrize("count", [10, 300, 1000, 1023, 1024, 5000])
def test_packed_summary_survives_the_journal(count):
    """It becomes lines that are stored as they are, in fewer bytes than sixteen pages have."""
    packed = large(count)
    lines = [encode_line(("tensors", "a" * 16, 1, part)) for part in packed.pack()]
    assert all(part in line.decode() for part, line in zip(packed.pack(), lines, strict=True))
    assert sum(map(len, lines)) < 14 * 3800
    assert TensorSummary.unpack(packed.pack()) == packed


def test_very_many_tensors_have_a_digest_per_key():
    """A difference is named by its top-level key, and so is other content. The other keys are not named."""
    saved, count = large(5000), tensor_summary.MAX_TENSORS * 2
    assert saved.tensors is None
    assert saved.compare(large(5000)) == {}
    assert saved.compare(large(4999)) == {names.ALTERED_KEYS: ["model"]}
    assert saved.compare(large(5000, seed=1)) == {names.ALTERED_KEYS: ["model"], names.ALTERED_CONTENTS: ["model"]}
    assert large(10).compare(large(count)) == {names.ALTERED_KEYS: ["model"]}, "one of them has names, the other has not"


def test_many_top_level_keys():
    """They are bounded, and a difference in any of them is noticed."""
    tensors = [Tensor(f"k{number}", f"k{number}", "f[1]") for number in range(3000)]
    saved = TensorSummary.of(tensors)
    assert list(saved.keys) == [OTHER]
    assert saved.compare(TensorSummary.of([*tensors[:-1], Tensor("k2999", "k2999", "f[2]")])) == {names.ALTERED_KEYS: [OTHER]}
    few = tensors[:100]
    assert TensorSummary.of(few).compare(TensorSummary.of(few[1:])) == {names.ALTERED_KEYS: ["k0"]}, "named one by one"


def test_altered_keys_are_bounded():
    """A span names the first ones."""
    assert len(large(100).compare(large(0))[names.ALTERED_KEYS]) == 20


@pytest.mark.parametrize(
    "parts",
    [["not base64 at all!"], ["AAAA"], [], ["é"], TensorSummary({}).pack()[0:0], [large(50).pack()[0][:-20]]],
    ids=["text", "bytes", "nothing", "unicode", "no parts", "truncated"],
)
def test_damaged_parts(parts):
    """They are no summary, and no exception."""
    assert TensorSummary.unpack(parts) is None


def test_bomb_is_not_unpacked():
    """A small text that would become very large is refused: a journal may be damaged or hostile."""
    data = b'{"keys":{"a":"' + b"0" * (64 << 20) + b'"}}'
    assert TensorSummary.unpack([base64.urlsafe_b64encode(zlib.compress(data)).decode()]) is None
