"""Translates obstore's exceptions to CheckpointErrors, by type and, where that is too general, by message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from ckpt_observe.errors import AccessError, CapacityError, CheckpointError, ConflictError, DeadlineError, StorageError, UnavailableError
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.host_exceptions import raise_host_exception

_TYPES: tuple[tuple[type[BaseException], type[CheckpointError], str, bool], ...] = (
    (exceptions.AlreadyExistsError, ConflictError, "conflict.exists", False),
    (exceptions.PreconditionError, ConflictError, "conflict.exists", False),
    (exceptions.PermissionDeniedError, AccessError, "storage.permission", False),
    (exceptions.UnauthenticatedError, AccessError, "permission.authentication", False),
    (TimeoutError, DeadlineError, "timeout.deadline", True),
)
_MESSAGES: tuple[tuple[str, type[CheckpointError], str], ...] = (
    ("<Code>InvalidAccessKeyId<", AccessError, "permission.authentication"),
    ("<Code>SignatureDoesNotMatch<", AccessError, "permission.authentication"),
    ("507 Insufficient Storage", CapacityError, "storage.no_space"),
    ("kind: Timeout", DeadlineError, "timeout.deadline"),
    ("timed out", DeadlineError, "timeout.deadline"),
    ("kind: Interrupted", UnavailableError, "unavailable.connection"),  # the body of an answer was cut
    ("error sending request", UnavailableError, "unavailable.connection"),
    ("Service Unavailable", UnavailableError, "unavailable.overloaded"),
    ("SlowDown", UnavailableError, "unavailable.overloaded"),
    ("401 Unauthorized", AccessError, "permission.authentication"),
    ("403 Forbidden", AccessError, "storage.permission"),
)
"""Wrong keys, connection failures and forbidden listings can only be recognized by their message. The first that occurs counts."""
_NO_BUCKET = ("<Code>NoSuchBucket<", "<Code>ContainerNotFound<")
"""Parts of the answers for a missing bucket: of S3 and Google, and of Azure. obstore reports it like a missing object."""
_BEYOND_END = ("status code: 416 ", "StartTooLarge {")
"""Messages of the service and of obstore for a range that starts after the end of the object. URLs in messages contain no spaces."""


@contextmanager
def translate_object_errors(action: str, location: str) -> Iterator[None]:
    """Raise errors of the block as CheckpointErrors. `action` and `location` are for the message."""
    try:
        yield
    except CheckpointError:
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise_host_exception(error)
        raise _to_checkpoint_error(error, f"{action} in {location}") from error


def is_beyond_end(error: BaseException) -> bool:
    """Return whether the requested range starts after the end of the object."""
    return any(message in str(error) for message in _BEYOND_END)


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether the bucket, not just the object, does not exist."""
    return any(message in str(error) for message in _NO_BUCKET)


def _to_checkpoint_error(error: BaseException, action: str) -> CheckpointError:
    """Return the CheckpointError for an error. obstore's message is left out, because it may contain the data that was sent."""
    if is_missing_bucket(error):
        message = add_advice(f"{action}: the bucket does not exist", "storage.no_bucket")
        return StorageError(message, code="storage.no_bucket", retryable=False)
    if not isinstance(error, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
        for message, target_type, code in _MESSAGES:
            if message in str(error):
                return target_type(add_advice(f"{action}: {message}", code), code=code)
    for source_type, target_type, code, retryable in _TYPES:
        if isinstance(error, source_type):
            return target_type(add_advice(f"{action}: {type(error).__name__}", code), code=code, retryable=retryable)
    return StorageError(add_advice(f"{action}: {type(error).__name__}", "storage.io"))
