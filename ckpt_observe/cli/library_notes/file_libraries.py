"""Notes on the libraries that save objects and tensors to files."""

from __future__ import annotations

from typing import Final

from ckpt_observe.cli.library_notes.texts import COMPARED_TENSORS, FILE_TASK, TENSORS, LibraryNotes
from ckpt_observe.semconv import attributes as names

# fmt: off
FILE_NOTES: Final = {
    "torch": LibraryNotes(
        {
            names.SYSTEM: "`torch`",
            names.STORE: "`file`",
            names.FORMAT: "`torch`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file",
            names.STEP: "`global_step`, `step` or `iteration` of the state, if it is an integer",
            names.SIZE_STORED: "size of the file, if torch opened it",
            names.SIZE_SERIALIZED: "bytes of the pickle and of the tensors",
            **COMPARED_TENSORS,
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "Copies from GPU memory during a save, as a phase of their own: they are between the writes.",
            "Bytes that are read when a tensor of a load with `mmap=True` is used for the first time.",
            "Damaged tensors: `torch.load` does not check them. `torch.jit.save` and `torch.package`.",
            FILE_TASK.format("torch.save"),
        ),
    ),
    "safetensors": LibraryNotes(
        {
            names.SYSTEM: "`safetensors`",
            names.STORE: "`file`",
            names.FORMAT: "`safetensors`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file",
            names.SIZE_STORED: "size of the file",
            **COMPARED_TENSORS,
            names.ERROR_IMPACT: "whether a failed save changed the file that was there before",
        },
        (
            "`safe_open`, which reads single tensors and is a type written in Rust. `load_file` and `load_model` use it and are observed.",
            "`save` and `load`, which only convert to and from bytes.",
            "`safetensors.flax`, `safetensors.tensorflow` and others, as far as they do not use the functions for NumPy.",
            FILE_TASK.format("safetensors"),
        ),
    ),
    "joblib": LibraryNotes(
        {
            names.SYSTEM: "`joblib`",
            names.STORE: "`file`",
            names.FORMAT: "`pickle`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file",
            names.SIZE_STORED: "size of the file, if joblib opened it",
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "`joblib.Memory` and the files through which joblib passes arrays to workers, because they are caches.",
            FILE_TASK.format("joblib"),
        ),
    ),
    "numpy": LibraryNotes(
        {
            names.SYSTEM: "`numpy`",
            names.STORE: "`file`",
            names.FORMAT: "of a save `npy` or `npz`",
            names.ID: "absolute path of the file, by which a load finds its save",
            names.LOCATION: "path of the file, with the suffix that NumPy appends",
            names.SIZE_STORED: "size of the file, if NumPy opened it",
            **TENSORS,
            names.ERROR_IMPACT: "whether a failed save destroyed the file that was there before",
        },
        (
            "Arrays of an `.npz` file, which are read when they are used. Arrays that `savez` gets without a name are not described.",
            "`numpy.savetxt`, `ndarray.tofile`, `numpy.memmap` and `numpy.load` by name in modules that were imported before.",
            FILE_TASK.format("NumPy"),
        ),
    ),
}
# fmt: on
