"""All exceptions of the package.

CkptObserveError
├── ConfigError                   a setting is invalid
│   └── MissingExtraError         an optional package is not installed
├── JournalError                  a journal cannot be created or read
│   └── DamagedJournalError       its description is damaged
├── DamagedFileError              a file of ours is damaged; also an OSError
├── DaemonRunningError            the state directory already has a daemon
├── TraceStoreError               the local trace store cannot be opened, read or written
├── HttpError                     a request got no complete response
├── ExporterError                 a batch was not delivered
│   ├── ExporterRetryError        the backend is down or busy; it is sent again
│   │   ├── ExporterUnclearError  the response was lost, so the backend may have the batch
│   │   │   └── ExporterServerError   the backend failed on this batch; it may accept others
│   │   └── ExporterSetupError    wrong key, path or address
│   └── ExporterRefusedError      the backend will never accept it: malformed or too large
└── CheckpointError               raised by the reference core; has class, code, retryable, recovery and impact
    ├── StorageError · CapacityError · AccessError · UnavailableError · DeadlineError
    ├── SerializationError · CompressionError
    ├── IntegrityError · CompatibilityError
    └── CheckpointNotFoundError · ConflictError · InvalidNameError · LocationError
"""

from __future__ import annotations

from typing import ClassVar, Final


class CkptObserveError(Exception):
    """Base class of all exceptions of this package."""


class ConfigError(CkptObserveError, ValueError):
    """A setting or argument has an invalid value. The message names the setting, what is allowed, and the value unless it may be secret."""

    error_class: ClassVar[str] = "configuration"
    code: str = "configuration.invalid"
    retryable: ClassVar[bool] = False


class MissingExtraError(ConfigError):
    """An optional feature needs a package that is not installed. The message names the extra to install, or the package if none has it."""

    code = "configuration.missing_extra"

    def __init__(self, feature: str, extra: str = "", *, package: str = "") -> None:
        requirement = package or f"'ckpt-observe[{extra}]'"
        super().__init__(f"{feature} needs a package that is not installed; run: pip install {requirement}")


class JournalError(CkptObserveError):
    """A journal cannot be created or read. The message names the directory and what to do."""


class DamagedJournalError(JournalError):
    """The description of a journal is damaged, so nobody knows to whom its records belong."""


class DamagedFileError(CkptObserveError, OSError):
    """A file of ours is not a regular file, is too large, or cannot be decoded. `strerror` says which."""


class DaemonRunningError(CkptObserveError):
    """The state directory already has a daemon. The message names its process."""


class TraceStoreError(CkptObserveError):
    """The local trace store cannot be opened, read or written. The message says why and what to do."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether the same call may succeed later. False: the span cannot be stored, or is damaged in the store."""


class TraceNotFoundError(CkptObserveError):
    """No trace has this ID or ID prefix. The message says how to list them."""


class AmbiguousTraceError(CkptObserveError):
    """Several traces have this ID prefix. The message lists their IDs."""


class HttpError(CkptObserveError):
    """An HTTP request got no complete response. The message is the cause, without the URL, which may contain secrets."""

    PREPARE: Final = "prepare"
    """Nothing was sent: a bad URL or a certificate file that cannot be read."""
    CONNECT: Final = "connect"
    TLS: Final = "tls"
    ANSWER: Final = "answer"
    """The request was sent, at least in part: the server may have acted on it."""

    def __init__(self, message: str, stage: str) -> None:
        super().__init__(message)
        self.stage = stage
        """How far the request got: PREPARE, CONNECT, TLS or ANSWER."""


class ExporterError(CkptObserveError):
    """An exporter did not deliver a batch."""


class ExporterRetryError(ExporterError):
    """The batch was not delivered now, because the server is down or busy. It is kept and sent again."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
        """Seconds to wait before the next attempt, if the server asked for it; else None."""


class ExporterUnclearError(ExporterRetryError):
    """The request was sent, but the response was lost. The server may or may not have the batch; it is sent again."""


class ExporterServerError(ExporterUnclearError):
    """The server failed while it handled the batch (500). It is sent again. If that keeps failing, the span that causes it is set aside."""


class ExporterSetupError(ExporterRetryError):
    """The backend is configured wrongly: key, path or address. The batch is kept until somebody corrects it."""


class ExporterRefusedError(ExporterError):
    """The backend will never accept the batch: it is malformed or too large."""


class CheckpointError(CkptObserveError):
    """An operation of the reference core failed. The message says what failed, for which checkpoint, and what to do."""

    error_class: ClassVar[str] = "unknown"
    code: str = "unknown.exception"
    retryable: bool = False
    recovery: str | None = None
    """What was done about the error; None if nothing."""
    impact: str | None = None
    """What the error means for the task; None if that is not known."""
    checkpoint_id: str | None = None
    """Id of the checkpoint that could not be loaded, if the error is about one."""

    def __init__(self, message: str, *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class StorageError(CheckpointError):
    """The storage medium reported an error."""

    error_class = "storage"
    code = "storage.io"
    retryable = True


class CapacityError(CheckpointError):
    """Disk space, memory or quota is exhausted."""

    error_class = "capacity"
    code = "storage.no_space"


class AccessError(CheckpointError):
    """Access to the store was denied."""

    error_class = "permission"
    code = "storage.permission"


class UnavailableError(CheckpointError):
    """The store or its server cannot be reached."""

    error_class = "unavailable"
    code = "unavailable.connection"
    retryable = True


class DeadlineError(CheckpointError):
    """The operation exceeded its deadline."""

    error_class = "timeout"
    code = "timeout.deadline"
    retryable = True


class SerializationError(CheckpointError):
    """The state cannot be serialized, or the stored bytes cannot be deserialized."""

    error_class = "serialization"
    code = "serialization.unsupported_type"


class CompressionError(CheckpointError):
    """Compression or decompression failed, or the result exceeds its size limit."""

    error_class = "compression"
    code = "compression.malformed"


class IntegrityError(CheckpointError):
    """The stored bytes differ from those that were saved."""

    error_class = "integrity"
    code = "integrity.checksum_mismatch"
    damaged_count = 1
    """Number of damaged checkpoints: more than one if all that a load could use are damaged."""


class CompatibilityError(CheckpointError):
    """The checkpoint was written by a version or in a format that this version cannot read."""

    error_class = "compatibility"
    code = "compatibility.newer_version"


class CheckpointNotFoundError(CheckpointError, LookupError):
    """The checkpoint or task does not exist."""

    error_class = "not_found"
    code = "not_found.checkpoint"


class ConflictError(CheckpointError):
    """The checkpoint already exists or another one needs it, the run has already ended, or another writer holds the lock."""

    error_class = "conflict"
    code = "conflict.exists"


class InvalidNameError(CheckpointError, ValueError):
    """The name of a task or checkpoint is invalid."""

    error_class = "configuration"
    code = "configuration.invalid_name"


class LocationError(CheckpointError):
    """The location of a store cannot be used: the wrong kind of file, too long a path, a missing database, or a feature that it lacks."""

    error_class = "configuration"
    code = "configuration.invalid"
