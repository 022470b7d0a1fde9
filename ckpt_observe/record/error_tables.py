"""Which exception means which error code, by type and message: data, used by `error_lookup`.

Types are named, so libraries need not be installed. A type stands for its subclasses too; the nearest in the method resolution order
counts. A row has an error code, or the outcome `ok` if the exception is control flow and not a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ckpt_observe.support.sqlstates import ERROR_CODES_BY_CONNECTION_MESSAGE

_PYTHON_MESSAGES: Final = (
    ("JSON serializable", "serialization.unsupported_type"),  # json, orjson
    ("msgpack serializable", "serialization.unsupported_type"),  # ormsgpack
    ("can not serialize", "serialization.unsupported_type"),  # msgpack
    ("Encoding objects of type", "serialization.unsupported_type"),  # msgspec
    ("annot pickle", "serialization.unsupported_type"),
    ("an't pickle", "serialization.unsupported_type"),
    ("an't get local object", "serialization.unsupported_type"),
    ("Circular reference detected", "serialization.unsupported_type"),
    ("too large to convert to SQLite INTEGER", "serialization.unsupported_type"),
    ("MAC check failed", "encryption.wrong_key"),  # PyCryptodome
    ("I/O operation on closed file", "storage.closed"),
    ("no active connection", "storage.closed"),  # aiosqlite
    ("Connection closed", "storage.closed"),  # aiosqlite
    ("Compressed file ended before", "compression.malformed"),  # gzip, bz2, lzma: EOFError
)
_BUCKET_MESSAGES: Final = (
    ("<Code>NoSuchBucket<", "storage.no_bucket"),
    ("<Code>ContainerNotFound<", "storage.no_bucket"),
)
_CANCELLATION_MESSAGES: Final = (("user request", "cancelled.requested"),)
_CHANGE_MESSAGES: Final = (
    ("changed size during iteration", "serialization.concurrent_change"),
    ("keys changed during iteration", "serialization.concurrent_change"),
    ("mutated during iteration", "serialization.concurrent_change"),
)
"""Another thread changed a dict, set or deque while it was serialized."""
_CERTIFICATE_MESSAGES: Final = (("CERTIFICATE_VERIFY_FAILED", "configuration.invalid"),)

MESSAGES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "sqlite3.Error": (
        ("closed database", "storage.closed"),
        ("closed cursor", "storage.closed"),
        ("rror binding parameter", "serialization.unsupported_type"),
        ("created in a thread", "configuration.unsupported"),
    ),
    "psycopg.errors.QueryCanceled": _CANCELLATION_MESSAGES,
    "psycopg2.errors.QueryCanceled": _CANCELLATION_MESSAGES,
    "asyncpg.exceptions.QueryCanceledError": _CANCELLATION_MESSAGES,
    "psycopg.OperationalError": ERROR_CODES_BY_CONNECTION_MESSAGE,
    "psycopg2.OperationalError": ERROR_CODES_BY_CONNECTION_MESSAGE,
    "psycopg.ProgrammingError": (("cannot adapt type", "serialization.unsupported_type"),),
    "psycopg2.ProgrammingError": (("can't adapt type", "serialization.unsupported_type"),),
    "redis.exceptions.ResponseError": (
        ("OOM ", "memory.exhausted"),
        ("NOAUTH", "permission.authentication"),
        ("WRONGPASS", "permission.authentication"),
        ("MISCONF", "storage.io"),  # the server cannot write to its disk
        ("unknown command", "configuration.unsupported"),  # a module such as RedisJSON is not loaded
    ),
    "builtins.FileNotFoundError": _BUCKET_MESSAGES,  # obstore
    "obstore.exceptions.BaseError": (
        *_BUCKET_MESSAGES,
        ("<Code>ExpiredToken<", "permission.authentication"),
        ("<Code>InvalidAccessKeyId<", "permission.authentication"),
        ("<Code>SignatureDoesNotMatch<", "permission.authentication"),
        ("kind: Timeout", "timeout.deadline"),
        ("timed out", "timeout.deadline"),
        ("error sending request", "unavailable.connection"),
        ("error decoding response body", "unavailable.connection"),
        ("status code: 429", "unavailable.overloaded"),
        ("status code: 5", "unavailable.overloaded"),
        ("status code: 401", "permission.authentication"),
        ("status code: 403", "storage.permission"),
    ),
    "httpx.ConnectError": _CERTIFICATE_MESSAGES,
    "builtins.TypeError": _PYTHON_MESSAGES,
    "builtins.ValueError": _PYTHON_MESSAGES,
    "builtins.AttributeError": _PYTHON_MESSAGES,
    "builtins.OverflowError": _PYTHON_MESSAGES,
    "builtins.RuntimeError": (("LZ4F_", "compression.malformed"), *_CHANGE_MESSAGES),
    "builtins.EOFError": _PYTHON_MESSAGES,
}
"""By type: texts in the message that say what the type does not. The first text that occurs counts."""

TYPES: Final[Mapping[str, str]] = {
    "asyncio.exceptions.CancelledError": "cancelled.requested",
    "concurrent.futures._base.CancelledError": "cancelled.requested",
    "builtins.KeyboardInterrupt": "cancelled.requested",
    "builtins.SystemExit": "cancelled.requested",
    "builtins.GeneratorExit": "cancelled.requested",
    "langgraph.errors.GraphBubbleUp": "ok",  # a pause for a human, or a jump to another graph
    "optuna.exceptions.TrialPruned": "ok",  # an early stop
    "lightgbm.callback.EarlyStopException": "ok",
    "builtins.TimeoutError": "timeout.deadline",
    "builtins.ConnectionError": "unavailable.connection",
    "builtins.PermissionError": "storage.permission",
    "builtins.FileNotFoundError": "not_found.path",
    "builtins.FileExistsError": "conflict.exists",
    "builtins.IsADirectoryError": "configuration.invalid",
    "builtins.NotADirectoryError": "configuration.invalid",
    "builtins.MemoryError": "memory.exhausted",
    "builtins.ImportError": "configuration.missing_extra",
    "socket.gaierror": "unavailable.connection",
    "socket.herror": "unavailable.connection",
    "ssl.SSLError": "unavailable.connection",
    "ssl.SSLCertVerificationError": "configuration.invalid",
    "json.decoder.JSONDecodeError": "serialization.malformed",
    "msgspec.EncodeError": "serialization.unsupported_type",
    "msgspec.DecodeError": "serialization.malformed",
    "_pickle.PicklingError": "serialization.unsupported_type",
    "pickle.PicklingError": "serialization.unsupported_type",
    "_pickle.UnpicklingError": "serialization.malformed",
    "pickle.UnpicklingError": "serialization.malformed",
    "msgpack.exceptions.UnpackException": "serialization.malformed",
    "msgpack.exceptions.ExtraData": "serialization.malformed",
    "msgpack.exceptions.FormatError": "serialization.malformed",
    "msgpack.exceptions.StackError": "serialization.malformed",
    "pydantic_core._pydantic_core.PydanticSerializationError": "serialization.unsupported_type",
    "safetensors._safetensors_rust.SafetensorError": "integrity.malformed",
    "zipfile.BadZipFile": "integrity.malformed",
    "tarfile.ReadError": "integrity.malformed",
    "zlib.error": "compression.malformed",
    "gzip.BadGzipFile": "compression.malformed",
    "_lzma.LZMAError": "compression.malformed",
    "_block.LZ4BlockError": "compression.malformed",
    "compression.zstd.ZstdError": "compression.malformed",
    "backports.zstd.ZstdError": "compression.malformed",
    "zstandard.backend_c.ZstdError": "compression.malformed",
    "cryptography.exceptions.InvalidTag": "encryption.wrong_key",
    "cryptography.fernet.InvalidToken": "encryption.wrong_key",
    "torch.OutOfMemoryError": "memory.exhausted",
    "psycopg.OperationalError": "unavailable.connection",
    "psycopg.InterfaceError": "unavailable.connection",
    "psycopg.DataError": "serialization.unsupported_type",
    "psycopg.ProgrammingError": "configuration.invalid",
    "psycopg.NotSupportedError": "configuration.unsupported",
    "psycopg.errors.QueryCanceled": "timeout.deadline",
    "psycopg.errors.ConnectionTimeout": "timeout.deadline",
    "psycopg.errors.CancellationTimeout": "timeout.deadline",
    "psycopg_pool.PoolTimeout": "timeout.deadline",
    "psycopg_pool.TooManyRequests": "unavailable.overloaded",
    "psycopg_pool.PoolClosed": "storage.closed",
    "psycopg2.OperationalError": "unavailable.connection",
    "psycopg2.errors.QueryCanceled": "timeout.deadline",
    "psycopg2.InterfaceError": "unavailable.connection",
    "asyncpg.exceptions.QueryCanceledError": "timeout.deadline",
    "asyncpg.exceptions._base.InterfaceError": "unavailable.connection",
    "sqlalchemy.exc.TimeoutError": "timeout.deadline",
    "sqlalchemy.exc.ResourceClosedError": "storage.closed",
    "redis.exceptions.ConnectionError": "unavailable.connection",
    "redis.exceptions.TimeoutError": "timeout.deadline",
    "redis.exceptions.AuthenticationError": "permission.authentication",
    "redis.exceptions.AuthorizationError": "permission.authentication",
    "redis.exceptions.NoPermissionError": "storage.permission",
    "redis.exceptions.BusyLoadingError": "unavailable.overloaded",
    "redis.exceptions.MaxConnectionsError": "unavailable.overloaded",
    "redis.exceptions.ClusterDownError": "unavailable.connection",
    "redis.exceptions.TryAgainError": "unavailable.overloaded",
    "redis.exceptions.OutOfMemoryError": "memory.exhausted",
    "redis.exceptions.ReadOnlyError": "storage.read_only",
    "redis.exceptions.LockError": "conflict.locked",
    "redis.exceptions.WatchError": "conflict.locked",
    "redis.exceptions.DataError": "serialization.unsupported_type",
    "redis.exceptions.ResponseError": "configuration.invalid",
    "obstore.exceptions.AlreadyExistsError": "conflict.exists",
    "obstore.exceptions.PreconditionError": "conflict.exists",
    "obstore.exceptions.NotFoundError": "not_found.path",
    "obstore.exceptions.PermissionDeniedError": "storage.permission",
    "obstore.exceptions.UnauthenticatedError": "permission.authentication",
    "obstore.exceptions.NotSupportedError": "configuration.unsupported",
    "obstore.exceptions.InvalidPathError": "configuration.invalid_name",
    "obstore.exceptions.UnknownConfigurationKeyError": "configuration.invalid",
    "botocore.exceptions.ConnectionError": "unavailable.connection",
    "botocore.exceptions.HTTPClientError": "unavailable.connection",
    "botocore.exceptions.ConnectTimeoutError": "timeout.deadline",
    "botocore.exceptions.ReadTimeoutError": "timeout.deadline",
    "botocore.exceptions.SSLError": "configuration.invalid",
    "botocore.exceptions.IncompleteReadError": "unavailable.connection",
    "botocore.exceptions.ResponseStreamingError": "unavailable.connection",
    "botocore.exceptions.NoCredentialsError": "permission.authentication",
    "botocore.exceptions.PartialCredentialsError": "permission.authentication",
    "botocore.exceptions.CredentialRetrievalError": "permission.authentication",
    "botocore.exceptions.TokenRetrievalError": "permission.authentication",
    "botocore.exceptions.NoRegionError": "configuration.invalid",
    "botocore.exceptions.ParamValidationError": "configuration.invalid",
    "requests.exceptions.Timeout": "timeout.deadline",
    "requests.exceptions.ConnectionError": "unavailable.connection",
    "requests.exceptions.ChunkedEncodingError": "unavailable.connection",
    "requests.exceptions.SSLError": "configuration.invalid",
    "requests.exceptions.InvalidURL": "configuration.invalid",
    "requests.exceptions.MissingSchema": "configuration.invalid",
    "requests.exceptions.InvalidSchema": "configuration.invalid",
    "urllib3.exceptions.TimeoutError": "timeout.deadline",
    "urllib3.exceptions.NewConnectionError": "unavailable.connection",
    "urllib3.exceptions.ProtocolError": "unavailable.connection",
    "urllib3.exceptions.ProxyError": "unavailable.connection",
    "urllib3.exceptions.SSLError": "configuration.invalid",
    "urllib3.exceptions.LocationValueError": "configuration.invalid",
    "http.client.HTTPException": "unavailable.connection",
    "http.client.InvalidURL": "configuration.invalid",
    "httpx.TimeoutException": "timeout.deadline",
    "httpx.TransportError": "unavailable.connection",
    "httpx.UnsupportedProtocol": "configuration.invalid",
    "httpx.InvalidURL": "configuration.invalid",
    "httpcore.TimeoutException": "timeout.deadline",
    "httpcore.NetworkError": "unavailable.connection",
    "httpcore.RemoteProtocolError": "unavailable.connection",
    "aiohttp.client_exceptions.ClientConnectionError": "unavailable.connection",
    "aiohttp.client_exceptions.ClientPayloadError": "unavailable.connection",
    "aiohttp.client_exceptions.ServerTimeoutError": "timeout.deadline",
    "aiohttp.client_exceptions.ClientConnectorCertificateError": "configuration.invalid",
    "aiohttp.client_exceptions.InvalidURL": "configuration.invalid",
    "azure.core.exceptions.ServiceRequestError": "unavailable.connection",
    "azure.core.exceptions.ServiceResponseError": "unavailable.connection",
    "azure.core.exceptions.ServiceRequestTimeoutError": "timeout.deadline",
    "azure.core.exceptions.ServiceResponseTimeoutError": "timeout.deadline",
    "google.api_core.exceptions.RetryError": "timeout.deadline",
}

PHASE_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "serialize": dict.fromkeys(
        (
            "builtins.TypeError",
            "builtins.ValueError",
            "builtins.AttributeError",
            "builtins.RecursionError",
            "builtins.OverflowError",
            "builtins.NotImplementedError",
        ),
        "serialization.unsupported_type",
    ),
    "deserialize": dict.fromkeys(
        (
            "builtins.TypeError",
            "builtins.ValueError",
            "builtins.AttributeError",
            "builtins.LookupError",
            "builtins.EOFError",
            "builtins.RecursionError",
            "builtins.ArithmeticError",
            "builtins.AssertionError",
            "struct.error",
        ),
        "serialization.malformed",
    ),
    "decompress": dict.fromkeys(("builtins.ValueError", "builtins.EOFError", "builtins.OSError"), "compression.malformed"),
    "decrypt": {"builtins.ValueError": "encryption.wrong_key"},
}
"""By phase: what common exceptions mean there, if no other table has them."""

DEFAULTS: Final[Mapping[str, str]] = {
    "builtins.OSError": "storage.io",
    "builtins.EOFError": "integrity.truncated",
    "builtins.NotImplementedError": "configuration.unsupported",
    "builtins.RecursionError": "serialization.unsupported_type",
    "builtins.UnicodeEncodeError": "serialization.unsupported_type",
    "builtins.UnicodeError": "serialization.malformed",
    "psycopg.Error": "storage.io",
    "psycopg2.Error": "storage.io",
    "asyncpg.exceptions._base.PostgresError": "storage.io",
    "botocore.exceptions.BotoCoreError": "configuration.invalid",
    "redis.exceptions.RedisError": "storage.io",
    "obstore.exceptions.BaseError": "storage.io",
}
"""For exceptions that say little: they count only if nothing else in the chain of causes does."""
