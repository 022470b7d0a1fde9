"""Which native code of a library or server (errno, SQLite, SQLSTATE, HTTP, AWS) means which error code: data, used by `error_lookup`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO
from ckpt_observe.support.sqlstates import ERROR_CODES_BY_SQLSTATE


class NativeCodes(NamedTuple):
    """Error codes by the codes that a library or server uses itself."""

    codes: Mapping[Any, str]
    generalize: Callable[[Any], Any] | None = None
    """Returns the general code that a specific one belongs to. It is looked up if the table does not have the specific code."""


_ERRNO: Final = NativeCodes(ERROR_CODES_BY_ERRNO)

_SQLITE: Final = NativeCodes(
    {
        1: "configuration.invalid",  # SQLITE_ERROR: no such table, wrong SQL
        3: "storage.permission",  # PERM
        5: "conflict.locked",  # BUSY
        6: "conflict.locked",  # LOCKED
        7: "memory.exhausted",  # NOMEM
        8: "storage.read_only",  # READONLY
        9: "cancelled.requested",  # INTERRUPT
        10: "storage.io",  # IOERR
        11: "integrity.malformed",  # CORRUPT
        13: "storage.no_space",  # FULL
        14: "storage.cannot_open",  # CANTOPEN
        15: "conflict.locked",  # PROTOCOL: locking failed repeatedly
        18: "storage.too_large",  # TOOBIG
        19: "configuration.invalid",  # CONSTRAINT: the schema does not fit
        20: "serialization.unsupported_type",  # MISMATCH
        21: "configuration.unsupported",  # MISUSE
        22: "storage.too_large",  # NOLFS: no large files
        23: "storage.permission",  # AUTH
        25: "serialization.unsupported_type",  # RANGE
        26: "integrity.malformed",  # NOTADB
        522: "integrity.truncated",  # IOERR_SHORT_READ
        526: "configuration.invalid",  # CANTOPEN_ISDIR
        1544: "storage.permission",  # READONLY_DIRECTORY
        1555: "conflict.exists",  # CONSTRAINT_PRIMARYKEY
        2067: "conflict.exists",  # CONSTRAINT_UNIQUE
        2579: "conflict.exists",  # CONSTRAINT_ROWID
        3082: "memory.exhausted",  # IOERR_NOMEM
        8202: "integrity.checksum_mismatch",  # IOERR_DATA
        8458: "integrity.malformed",  # IOERR_CORRUPTFS
    },
    lambda code: code & 0xFF,
)
"""By result code (https://www.sqlite.org/rescode.html). The low byte of an extended code is the primary code."""

_SQLSTATE: Final = NativeCodes(ERROR_CODES_BY_SQLSTATE, lambda state: state[:2])
_HTTP_STATUS: Final = NativeCodes(
    {
        401: "permission.authentication",
        403: "storage.permission",
        404: "not_found.path",
        407: "permission.authentication",
        408: "timeout.deadline",
        409: "conflict.exists",
        410: "not_found.path",
        412: "conflict.exists",
        413: "storage.too_large",
        423: "conflict.locked",
        429: "unavailable.overloaded",
        4: "configuration.invalid",
        504: "timeout.deadline",
        507: "storage.no_space",
        5: "unavailable.overloaded",
    },
    lambda status: status // 100,
)

_AWS: Final = NativeCodes(
    {
        "AccessDenied": "storage.permission",
        "AccessDeniedException": "storage.permission",
        "BucketAlreadyExists": "conflict.exists",
        "ConditionalCheckFailedException": "conflict.exists",
        "ConditionalRequestConflict": "conflict.locked",
        "EntityTooLarge": "storage.too_large",
        "ExpiredToken": "permission.authentication",
        "ExpiredTokenException": "permission.authentication",
        "InvalidAccessKeyId": "permission.authentication",
        "InvalidClientTokenId": "permission.authentication",
        "InvalidToken": "permission.authentication",
        "ItemCollectionSizeLimitExceededException": "storage.too_large",
        "NoSuchBucket": "storage.no_bucket",
        "NoSuchKey": "not_found.path",
        "NoSuchVersion": "not_found.path",
        "OperationAborted": "conflict.locked",
        "PreconditionFailed": "conflict.exists",
        "ProvisionedThroughputExceededException": "unavailable.overloaded",
        "QuotaExceeded": "storage.quota",
        "RequestLimitExceeded": "unavailable.overloaded",
        "RequestTimeTooSkewed": "permission.authentication",
        "RequestTimeout": "timeout.deadline",
        "ResourceNotFoundException": "configuration.invalid",  # no such DynamoDB table
        "SignatureDoesNotMatch": "permission.authentication",
        "SlowDown": "unavailable.overloaded",
        "Throttling": "unavailable.overloaded",
        "ThrottlingException": "unavailable.overloaded",
        "TransactionConflictException": "conflict.locked",
        "UnrecognizedClientException": "permission.authentication",
    }
)

NATIVE_CODES: Final[Mapping[str, tuple[tuple[str, NativeCodes], ...]]] = {
    "builtins.OSError": (("errno", _ERRNO),),
    "ssl.SSLError": (),  # `errno` is a number of OpenSSL, such as 1, which is not EPERM
    "socket.gaierror": (),  # `errno` is a number of getaddrinfo
    "socket.herror": (),
    "sqlite3.Error": (("sqlite_errorcode", _SQLITE),),
    "psycopg.Error": (("sqlstate", _SQLSTATE),),
    "psycopg.errors.QueryCanceled": (),  # its message says by whom
    "psycopg2.Error": (("pgcode", _SQLSTATE),),
    "psycopg2.errors.QueryCanceled": (),
    "asyncpg.exceptions._base.PostgresMessage": (("sqlstate", _SQLSTATE),),
    "asyncpg.exceptions.QueryCanceledError": (),
    "botocore.exceptions.ClientError": (
        ("response.Error.Code", _AWS),
        ("response.ResponseMetadata.HTTPStatusCode", _HTTP_STATUS),
    ),
    "urllib.error.HTTPError": (("code", _HTTP_STATUS),),
    "requests.exceptions.HTTPError": (("response.status_code", _HTTP_STATUS),),
    "httpx.HTTPStatusError": (("response.status_code", _HTTP_STATUS),),
    "aiohttp.client_exceptions.ClientResponseError": (("status", _HTTP_STATUS),),
    "azure.core.exceptions.HttpResponseError": (("status_code", _HTTP_STATUS),),
    "google.api_core.exceptions.GoogleAPICallError": (("code", _HTTP_STATUS),),
}
"""By type: where its instances have a native code (attributes or keys, separated by dots), and the table of these codes.

The nearest type counts, so an empty row excludes a type that has no such code or whose code says too little."""
