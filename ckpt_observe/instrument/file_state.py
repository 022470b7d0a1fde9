"""The state that is saved to or loaded from a file. Its tensors are summarised, so that a load can be compared with its save."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ckpt_observe.instrument.checkpoint_file import CheckpointFile
from ckpt_observe.instrument.library_call import LibraryOperation
from ckpt_observe.instrument.tensor_digests import NoSampleError, digest_tensor
from ckpt_observe.instrument.tensors import TensorSearch, path_name
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.tensor_summary import Tensor, TensorSummary, tensor_type


def set_state(operation: LibraryOperation, state: Any) -> None:
    """Set the attributes of the state, and the summary of a state whose file has a path and all of whose tensors are known."""
    search = TensorSearch(state)
    operation.set(search.attributes())
    file: CheckpointFile = operation.details
    if file.path is None or not search.tensors or not search.is_complete:
        return
    skipped: Counter[str] = Counter()
    file.tensors = TensorSummary.of(
        Tensor(".".join(path), path_name(path), _type(tensor), _digest(tensor, skipped)) for _, path, tensor in search.tensors
    )
    if recorder.tensor_digests:
        reasons = [f"{count} {reason}" for reason, count in skipped.most_common(LARGEST_KEYS)]
        digests = len(search.tensors) - skipped.total()
        operation.set({names.TENSOR_DIGESTS: digests, names.TENSOR_DIGESTS_SKIPPED: reasons or None})


def _type(tensor: Any) -> str:
    """Return data type and shape; empty if the shape is not known, as of nested tensors of torch."""
    with ignore_errors(Exception):
        return tensor_type(tensor.dtype, tensor.shape)
    return ""


def _digest(tensor: Any, skipped: Counter[str]) -> str:
    """Return the digest of a sample of the content; empty if there is none. Count why."""
    if not recorder.tensor_digests:
        return ""
    try:
        return digest_tensor(tensor)
    except NoSampleError as error:
        skipped[str(error)] += 1
    except Exception as error:  # libraries add kinds of tensors without accessible memory
        raise_host_exception(error)
        skipped["not accessible"] += 1
    return ""
