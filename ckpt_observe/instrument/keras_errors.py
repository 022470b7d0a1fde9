"""What exceptions of Keras mean. Most are `ValueError`s, and those of its HDF5 files have no errno: the message tells."""

from __future__ import annotations

import json
import os
import re
import zipfile
from typing import Final

from ckpt_observe.instrument.checkpoint_paths import explain_json_error
from ckpt_observe.instrument.targets import Versions, installed_version
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO
from ckpt_observe.support.host_exceptions import ignore_errors

_HDF5: Final = re.compile(r"(?:Unable to|Can't) [\w ]+ \(")
"""How messages of the HDF5 library begin: what it was doing, and then the reason in parentheses."""
_CHANGED: Final = "compatibility.changed_program"
_ARGUMENTS: Final = (
    ("has not yet been built", "configuration.unsupported"),
    ("must end in", "configuration.invalid"),
    ("Invalid filepath extension", "configuration.invalid"),
)
_VALUES: Final = (
    *_ARGUMENTS,
    ("Expected a model.weights", "integrity.incomplete"),
    ("potential decompression", "compression.bomb"),
    ("Not allowed:", "integrity.malformed"),
    ("Invalid H5 file", "integrity.malformed"),
    ("Requested the deserialization of a", "serialization.unsupported_type"),
    ("objects could not be loaded", _CHANGED),
    ("ould not deserialize", _CHANGED),
    ("nrecognized", _CHANGED),
    ("not recognized", _CHANGED),
)


def _explain_save_error(error: ValueError) -> str | None:
    """By its message: the path has a wrong extension, or the model is not built."""
    return next((code for text, code in _ARGUMENTS if text in str(error)), None)


def _explain_hdf5_error(error: Exception) -> str | None:
    """By its message: the file ends too early, is damaged or is not such a file, or the file system reports an error."""
    message = str(error)
    number = re.search(r"errno = (\d+)", message)
    if number or not _HDF5.search(message):
        return ERROR_CODES_BY_ERRNO.get(int(number[1]), "storage.io") if number else None
    return "integrity.truncated" if "truncated file" in message else "integrity.malformed"


def _explain_value_error(error: ValueError) -> str | None:
    """By its message: no such file, a damaged one, one that is refused, or classes and shapes that the program does not have."""
    message = str(error)
    path = re.search(r"(?:File not found|File format not supported): filepath=(.*?)\. (?:Please|Keras 3)", message, re.DOTALL)
    if path:
        return _explain_refused_path(path[1])
    if _HDF5.search(message):  # of a layer; with errno 2, a file of a sharded checkpoint is missing
        return "integrity.incomplete" if "errno = 2," in message else "integrity.malformed"
    return next((code for text, code in _VALUES if text in message), None)


def _explain_refused_path(path: str) -> str:
    """Keras says "not found" of a file that is not a complete archive, and "not supported" of a path that does not exist."""
    if not os.path.exists(path):
        return "not_found.checkpoint"
    if os.path.isdir(path):
        return "integrity.incomplete" if os.path.exists(os.path.join(path, "metadata.json")) else "configuration.unsupported"
    if not path.endswith(".keras"):
        return "configuration.unsupported"
    with ignore_errors(OSError), open(path, "rb") as file:
        return "integrity.truncated" if file.read(2) in (b"", b"P", b"PK") else "integrity.malformed"
    return "storage.cannot_open"


def _explain_archive_error(error: Exception) -> str:
    """By its message: the bytes have changed, or are not an archive."""
    return "integrity.checksum_mismatch" if "CRC-32" in str(error) else "integrity.malformed"


def _explain_key_error(error: KeyError) -> str:
    """By its message: a file is missing in the archive, or the bytes are damaged."""
    return "integrity.incomplete" if "no item named" in str(error) else "integrity.malformed"


def _explain_type_error(error: TypeError) -> str | None:
    """By its message: the program does not have a class of the model, or the class has other arguments."""
    texts = ("ould not be deserialized", "ould not locate", "rror when deserializing", "nexpected keyword")
    return _CHANGED if any(text in str(error) for text in texts) else None


def is_from_newer_version(path: str, error: BaseException) -> bool:
    """Return whether a model cannot be rebuilt because a newer version of Keras saved it. Only models have the version."""
    if not isinstance(error, TypeError | ValueError) or isinstance(error, json.JSONDecodeError):
        return False
    with ignore_errors(Exception):  # whatever is wrong with the file, Keras has reported it
        if os.path.isdir(path):
            with open(os.path.join(path, "metadata.json"), "rb") as file:
                text = file.read(1 << 16)
        else:
            with zipfile.ZipFile(path) as archive, archive.open("metadata.json") as member:
                text = member.read(1 << 16)
        return not Versions(since=json.loads(text)["keras_version"]).include(installed_version("keras"))
    return False


SAVE_ERRORS: Final[ErrorCodes] = {
    "builtins.ValueError": _explain_save_error,
    "builtins.OSError": _explain_hdf5_error,
    "builtins.RuntimeError": _explain_hdf5_error,
}
LOAD_ERRORS: Final[ErrorCodes] = {
    "builtins.FileNotFoundError": "not_found.checkpoint",
    "builtins.ValueError": _explain_value_error,
    "builtins.OSError": _explain_hdf5_error,
    "builtins.RuntimeError": _explain_hdf5_error,
    "builtins.KeyError": _explain_key_error,
    "builtins.TypeError": _explain_type_error,
    "zipfile.BadZipFile": _explain_archive_error,
    "json.decoder.JSONDecodeError": explain_json_error,
    "builtins.UnicodeDecodeError": "serialization.malformed",
}
