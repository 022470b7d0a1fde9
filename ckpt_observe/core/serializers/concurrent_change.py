"""A state that the program changes while it is saved: how this is recognized and reported."""

from __future__ import annotations

from ckpt_observe.errors import SerializationError


def is_concurrent_change(error: BaseException | None) -> bool:
    """Return whether Python raised this because a dict, set, OrderedDict or deque changed while it was read."""
    return isinstance(error, RuntimeError) and "during iteration" in str(error)


def concurrent_change_error(consequence: str) -> SerializationError:
    message = f"the program changed the state while it was saved; {consequence}. Save while no other thread changes it, or save a copy"
    return SerializationError(message, code="serialization.concurrent_change", retryable=True)
