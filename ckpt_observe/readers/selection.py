"""Selects one checkpoint of a task by a reference that people type. A message about a wrong name suggests a similar one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ckpt_observe.core.loading.references import Checkpoint, select
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError
from ckpt_observe.support.suggestions import suggest

_MAX_CANDIDATES: Final = 10
"""IDs that a message about an ambiguous prefix lists."""
_is_position = re.compile(r"latest(~\d+)?|step:-?\d+|at:.*").fullmatch


def select_checkpoint(checkpoints: Sequence[Checkpoint], task: str, reference: str) -> Checkpoint:
    """Return the checkpoint to which a reference of the core, or a unique start of an ID, refers. They are ordered newest first.

    ConfigError if a prefix is ambiguous. CheckpointNotFoundError, with a similar ID if there is one, if nothing matches.
    """
    try:
        return select(checkpoints, task, reference)
    except CheckpointNotFoundError:
        return select(checkpoints, task, expand_prefix([checkpoint.id for checkpoint in checkpoints], task, reference))


def expand_prefix(ids: Sequence[str], task: str, prefix: str) -> str:
    """Return the only ID that starts with the prefix."""
    matches = sorted({id for id in ids if prefix and id.startswith(prefix)})
    if len(matches) > 1:
        listed = ", ".join(matches[:_MAX_CANDIDATES]) + (", ..." if len(matches) > _MAX_CANDIDATES else "")
        raise ConfigError(f"{prefix!r} is ambiguous: it is the start of {len(matches)} checkpoint IDs of {task!r}: {listed}")
    if not matches:
        hint = "" if _is_position(prefix) else suggest(prefix, [*ids, "latest"])
        text = f"{task!r} has no checkpoint {prefix!r} among its {len(ids)}"
        raise CheckpointNotFoundError(text + (hint or "; `ckpt-observe list STORE TASK` lists them"))
    return matches[0]


def no_thread(location: str, thread: str | None, threads: Sequence[str]) -> CheckpointNotFoundError:
    """Return the error for a thread that a database of LangGraph does not have. `threads`: those that it has."""
    hint = suggest(thread or "", threads) or ("; `ckpt-observe list STORE` lists its threads" if threads else "; it is empty")
    return CheckpointNotFoundError(f"{location} has no thread {thread!r}{hint}")
