"""Every exception of ours. Imports nothing of the package.

CkptObserveError
├── ConfigError                   a setting is wrong: says which, why, and what would do
│   └── MissingExtraError         an optional package is not installed: names the extra
├── JournalError                  a journal cannot be made or read
├── DaemonRunningError             the state directory has a daemon already: says which
├── TraceStoreError               the local trace store cannot be opened or read
├── HttpError                     a request of ours got no complete answer: says how far it came
├── ExporterError
│   ├── ExporterRetryError            not delivered, try again
│   │   ├── ExporterUnclearError      perhaps delivered: the answer was lost
│   │   └── ExporterSetupError        the destination is set up wrongly: key, path, address
│   └── ExporterRefusedError          never will be: malformed, too large
└── CheckpointError               raised by the core; carries class, code, retryable, recovery and impact
    ├── StorageError · CapacityError · AccessError · UnavailableError · DeadlineError
    ├── SerializationError · CompressionError
    ├── IntegrityError · CompatibilityError
    └── CheckpointNotFoundError · ConflictError · InvalidNameError
"""

from __future__ import annotations

from typing import ClassVar, Final


class CkptObserveError(Exception):
    """Base of every exception this package raises."""


class ConfigError(CkptObserveError, ValueError):
    """A setting has a value that cannot be."""

    error_class: ClassVar[str] = "configuration"
    code: str = "configuration.invalid"
    retryable: ClassVar[bool] = False


class MissingExtraError(ConfigError):
    """A package that an optional feature needs is not installed."""

    code = "configuration.missing_extra"

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"for {feature} a package is not installed: pip install 'ckpt-observe[{extra}]'")


class JournalError(CkptObserveError):
    """A journal cannot be made or read; the message says which, and what to do."""


class DaemonRunningError(CkptObserveError):
    """The state directory has a daemon already; the message says who it is."""


class TraceStoreError(CkptObserveError):
    """The local trace store cannot be opened, read or written; the message says why, and what to do."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether the same call can succeed later, unchanged. False: the span itself does not go in."""


class HttpError(CkptObserveError):
    """An HTTP request got no complete answer. The message is the cause, without the URL, which may hold secrets."""

    PREPARE: Final = "prepare"
    """Nothing was sent: a bad URL or a certificate file that cannot be read."""
    CONNECT: Final = "connect"
    TLS: Final = "tls"
    ANSWER: Final = "answer"
    """The request was sent, at least in part: the server may have acted on it."""

    def __init__(self, message: str, stage: str) -> None:
        super().__init__(message)
        self.stage = stage


class ExporterError(CkptObserveError):
    """A batch was not delivered."""


class ExporterRetryError(ExporterError):
    """Not delivered, but may be later: server away, busy, or the answer was lost."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
        """Seconds the server asked us to wait, if it did."""


class ExporterUnclearError(ExporterRetryError):
    """The request went out and no whole answer came back: the server may have the batch or not."""


class ExporterSetupError(ExporterRetryError):
    """The destination is set up wrongly: a wrong key, path or address. Nothing is lost; somebody may put it right."""


class ExporterRefusedError(ExporterError):
    """Never will be delivered as it is: malformed, too large."""


class CheckpointError(CkptObserveError):
    """A checkpoint operation failed. The message says what failed, for which checkpoint, and what to do."""

    error_class: ClassVar[str] = "unknown"
    code: str = "unknown.exception"
    retryable: bool = False
    recovery: str | None = None
    """What was done about it, where something was."""
    impact: str | None = None
    """What it means for the task, where that is known."""

    def __init__(self, message: str, *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class StorageError(CheckpointError):
    """The medium refused."""

    error_class = "storage"
    code = "storage.io"
    retryable = True
    impact = "this checkpoint was not saved; the one before it is intact"


class CapacityError(CheckpointError):
    """No space, memory or quota left."""

    error_class = "capacity"
    code = "storage.no_space"
    impact = "this checkpoint was not saved; the one before it is intact"


class AccessError(CheckpointError):
    """Not allowed."""

    error_class = "permission"
    code = "storage.permission"


class UnavailableError(CheckpointError):
    """The store or its server cannot be reached."""

    error_class = "unavailable"
    code = "unavailable.connection"
    retryable = True


class DeadlineError(CheckpointError):
    """It took longer than allowed."""

    error_class = "timeout"
    code = "timeout.deadline"
    retryable = True


class SerializationError(CheckpointError):
    """The state could not become bytes, or the bytes no state."""

    error_class = "serialization"
    code = "serialization.unsupported_type"


class CompressionError(CheckpointError):
    """A codec refused, or the result grew beyond its bound."""

    error_class = "compression"
    code = "compression.malformed"


class IntegrityError(CheckpointError):
    """Stored bytes are not the bytes that were saved."""

    error_class = "integrity"
    code = "integrity.checksum_mismatch"


class CompatibilityError(CheckpointError):
    """Written by a version or with a format that this one cannot read."""

    error_class = "compatibility"
    code = "compatibility.newer_version"


class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no such checkpoint."""

    error_class = "not_found"
    code = "not_found.checkpoint"


class ConflictError(CheckpointError):
    """Somebody else wrote the same thing first, or holds the lock."""

    error_class = "conflict"
    code = "conflict.exists"


class InvalidNameError(CheckpointError, ValueError):
    """A task or checkpoint cannot have that name."""

    error_class = "configuration"
    code = "configuration.invalid_name"
