"""Explains failures of distributed checkpoints: torch collects the exceptions of all ranks in a `CheckpointException`."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from ckpt_observe.instrument.torch_files import LOAD_ERRORS, SAVE_ERRORS, is_failed_write
from ckpt_observe.record.error_lookup import UNKNOWN, ErrorCodes, explain
from ckpt_observe.semconv import attributes as names

EXCEPTION: Final = "torch.distributed.checkpoint.api.CheckpointException"
_MAX_RANKS: Final = 32
"""Ranks of a failure that are named."""
_PHASES: Final = ("plan", "write", "read")
"""Steps of torch that are phases."""
_NEWER: Final = ("too many values to unpack", "Can't get attribute")
"""Metadata are a pickle. Newer versions of torch add fields and classes to it."""
_MISSING_METADATA: Final = re.compile(r"No such file or directory: '(.*?)'")


def _explain_assertion(error: AssertionError) -> str | None:
    """Return why a load has no metadata: torch asserts that it could be read."""
    message = str(error).partition("; rank local metadata")[0]
    if "metadata is None" not in message:
        return None
    missing = _MISSING_METADATA.search(message)
    if missing is None:
        return "compatibility.newer_version" if any(text in message for text in _NEWER) else "integrity.malformed"
    directory = os.path.dirname(missing[1])
    is_begun = os.path.isdir(directory) and any(name.endswith(".distcp") for name in os.listdir(directory))
    return "integrity.incomplete" if is_begun else "not_found.checkpoint"


def _explain_mismatch(error: Exception) -> str | None:
    """The checkpoint has other keys or shapes than the program."""
    message = str(error)
    is_mismatch = "Missing key in checkpoint" in message or "ize mismatch" in message
    return "compatibility.changed_program" if is_mismatch else None


def _explain_plan_error(error: RuntimeError) -> str | None:
    return "conflict.exists" if "Checkpoint already exists" in str(error) else _explain_mismatch(error)


_ERRORS_BY_STEP: Final[dict[str, ErrorCodes]] = {
    "plan": {
        "builtins.AssertionError": _explain_assertion,
        "builtins.RuntimeError": _explain_plan_error,
        "builtins.ValueError": _explain_mismatch,
    },
    "write": SAVE_ERRORS,
    "read": {**LOAD_ERRORS, "builtins.FileNotFoundError": "integrity.incomplete", "builtins.ValueError": _explain_mismatch},
}


def explain_failures(error: Any) -> str | None:
    """Return the error code of the first rank whose exception is known."""
    step = error.args[0] if error.args else ""
    exceptions = _exceptions(error).values()
    codes = (explain(each, step, _ERRORS_BY_STEP.get(step, {})).code for each in exceptions)
    known_code = next((code for code in codes if code != UNKNOWN), None)
    return known_code or ("storage.io" if any(map(is_failed_write, exceptions)) else None)


def failure_attributes(error: BaseException) -> tuple[dict[str, Any], str | None]:
    """Return the ranks that failed with the types of their exceptions, and the phase; nothing for an exception that is not torch's."""
    exceptions = _exceptions(error)
    if not exceptions:
        return {}, None
    step = error.args[0] if error.args else None
    attributes = {names.ERROR_RANKS: list(exceptions), names.ERROR_RANK_TYPES: [type(each).__qualname__ for each in exceptions.values()]}
    return attributes, step if step in _PHASES else None


def _exceptions(error: BaseException) -> dict[int, BaseException]:
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return {}
    ranks = sorted(rank for rank in failures if isinstance(rank, int))[:_MAX_RANKS]
    return {rank: failures[rank][0] for rank in ranks if isinstance(failures[rank], tuple)}
