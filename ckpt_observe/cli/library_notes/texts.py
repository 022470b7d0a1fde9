"""The texts about a library, and those that several libraries share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ckpt_observe.semconv import attributes as names


class LibraryNotes(NamedTuple):
    """Texts about one library."""

    attributes: Mapping[str, str]
    """The attributes that the instrumentor sets, and what each one is in the library; empty: its general meaning says enough."""
    limits: tuple[str, ...]
    """What is not observed, and why."""
    guide: str = ""
    """A page that is written by hand."""


TASK: Final = "Runs as tasks: put `ckpt_observe.task` around them, and their operations are in one trace."
FILE_TASK: Final = (
    "The task: {} knows only a file. Put `ckpt_observe.task` around the calls to see how old the last checkpoint of a task is."
)
TENSORS: Final = dict.fromkeys((
    names.TENSORS, names.TENSOR_DTYPES, names.TENSOR_NAMES, names.TENSOR_SIZES, names.KEY_NAMES, names.KEY_SIZES,
), "")  # fmt: skip
COMPARED_TENSORS: Final = {
    **TENSORS,
    names.COMPARED: "",
    names.TENSOR_DIGESTS: "",
    names.TENSOR_DIGESTS_SKIPPED: "",
    names.ALTERED_KEYS: "tensors that differ from what was saved to the file",
    names.ALTERED_TYPES: "",
    names.ALTERED_CONTENTS: "",
}
