"""Which native code of a library or server (errno, SQLite, SQLSTATE, HTTP, AWS) means which error code: data, used by `error_lookup`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO


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

_SQLSTATE: Final = NativeCodes(
    {
        "08": "unavailable.connection",
        "0A": "configuration.unsupported",
        "22": "serialization.unsupported_type",  # such as text with a NUL character
        "22001": "storage.too_large",
        "23": "configuration.invalid",  # a constraint: the schema does not fit
        "23505": "conflict.exists",
        "25006": "storage.read_only",
        "25P03": "timeout.deadline",
        "25P04": "timeout.deadline",
        "26": "configuration.invalid",  # a prepared statement is gone: a connection pooler that does not support them
        "28": "permission.authentication",
        "3D": "configuration.invalid",  # no such database
        "3F": "configuration.invalid",  # no such schema
        "40": "conflict.locked",  # serialization failure, deadlock
        "42": "configuration.invalid",  # no such table or column
        "42501": "storage.permission",
        "53": "unavailable.overloaded",
        "53100": "storage.no_space",
        "53200": "memory.exhausted",
        "54": "storage.too_large",
        "55006": "conflict.locked",
        "55P03": "conflict.locked",
        "57": "unavailable.connection",  # the server is shutting down or starting
        "57014": "timeout.deadline",
        "57P04": "configuration.invalid",  # the database was dropped
        "57P05": "timeout.deadline",
        "58": "storage.io",
        "XX": "storage.io",
        "XX001": "integrity.malformed",
        "XX002": "integrity.malformed",
    },
    lambda state: state[:2],
)
"""By SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html). Its first two characters are its class."""

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
    "psycopg2.Error": (("pgcode", _SQLSTATE),),
    "asyncpg.exceptions._base.PostgresMessage": (("sqlstate", _SQLSTATE),),
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
"""By type: where its instances have a native code (attributes or keys, separated by dots), and the table of these codes."""
