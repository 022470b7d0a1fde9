"""What an object store says, in our words: one table from obstore's exceptions, and its messages where they tell more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from ckpt_observe.errors import AccessError, CheckpointError, ConflictError, DeadlineError, StorageError, UnavailableError

_TABLE: tuple[tuple[type[BaseException], type[CheckpointError], str, bool], ...] = (
    (exceptions.AlreadyExistsError, ConflictError, "conflict.exists", False),
    (exceptions.PreconditionError, ConflictError, "conflict.exists", False),
    (exceptions.PermissionDeniedError, AccessError, "storage.permission", False),
    (exceptions.UnauthenticatedError, AccessError, "storage.permission", False),
    (TimeoutError, DeadlineError, "timeout.deadline", True),
)
_WORDS: tuple[tuple[str, type[CheckpointError], str], ...] = (
    ("timed out", DeadlineError, "timeout.deadline"),
    ("error sending request", UnavailableError, "unavailable.connection"),
    ("Service Unavailable", UnavailableError, "unavailable.connection"),
    ("SlowDown", UnavailableError, "unavailable.connection"),
    ("401 Unauthorized", AccessError, "storage.permission"),
    ("403 Forbidden", AccessError, "storage.permission"),
)
"""obstore tells a connection that failed, and a listing that is not allowed, only by its message."""
_NO_BUCKET = ("<Code>NoSuchBucket<", "<Code>ContainerNotFound<")
"""S3 and Google say the first, Azure the second; obstore, that the object is not there."""
_BEYOND = ("status code: 416 ", "StartTooLarge {")
"""What the service, or obstore, says of a range that begins where the object has ended. No URL in a message holds a space."""


@contextmanager
def translated(doing: str, location: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise _of(error, f"{doing} in {location}") from error


def is_beyond(error: BaseException) -> bool:
    """Whether a range was asked for that begins where the object has ended."""
    return any(words in str(error) for words in _BEYOND)


def lacks_bucket(error: BaseException) -> bool:
    return any(word in str(error) for word in _NO_BUCKET)


def _of(error: BaseException, doing: str) -> CheckpointError:
    """The message of obstore is left out: it may hold what was sent."""
    if lacks_bucket(error):
        return StorageError(f"{doing}: there is no such bucket: make it first", code="storage.no_bucket", retryable=False)
    for kind, ours, code, retryable in _TABLE:
        if isinstance(error, kind):
            return ours(f"{doing}: {type(error).__name__}", code=code, retryable=retryable)
    for words, ours, code in _WORDS:
        if words in str(error):
            return ours(f"{doing}: {words}", code=code)
    return StorageError(f"{doing}: {type(error).__name__}")
