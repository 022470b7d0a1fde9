"""The message of an exception, without values of the host program that some libraries quote in it.

Content of checkpoints must not become telemetry: SQLAlchemy appends the parameters of the statement, Pydantic the invalid input, and
PostgreSQL the place in a JSON document, the key of a row or the whole row. Redis and its client quote the command, MongoDB and its client
the document, and the client of AWS the value of a parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final


def read_message(error: BaseException) -> str:
    """Return the message. Runs code of the host program, so it may raise."""
    for base in type(error).__mro__:
        read = _WITHOUT_VALUES.get(f"{base.__module__}.{base.__qualname__}")
        if read is not None:
            return read(error)
    return str(error)


def _read_statement_error(error: Any) -> str:
    """Return the message of the database driver, or SQLAlchemy's own."""
    return str(error.args[0]) if error.orig is None else read_message(error.orig)


def _read_validation_error(error: Any) -> str:
    """Return how many errors there are, and their types. Where they are may be content: a key of a dict."""
    types = {detail["type"] for detail in error.errors(include_url=False, include_context=False, include_input=False)}
    return f"{error.error_count()} validation error(s) in {error.title}: {', '.join(sorted(types))}"


def _read_server_error(error: Any) -> str:
    """Return what PostgreSQL says first, without details, context and statement. What it says about wrong data quotes the data."""
    message = error.diag.message_primary  # None if the message is of the driver, such as that a connection cannot be made
    return str(error) if message is None else _without_data(message, error.sqlstate if hasattr(error, "sqlstate") else error.pgcode)


def _read_asyncpg_error(error: Any) -> str:
    message = error.args[0] if error.args else ""
    return _ARGUMENT.sub(r"\1", _without_data(str(message), error.sqlstate))


_ARGUMENT: Final = re.compile(r"(invalid input for query argument \$\d+).*", re.DOTALL)
"""What asyncpg itself refuses, with the value."""


def _read_adapted_error(error: BaseException) -> str:
    """Return the message of asyncpg's error, which SQLAlchemy replaces with one of its own."""
    return str(error) if error.__cause__ is None else read_message(error.__cause__)


_QUOTED: Final = re.compile(r':? ?["„“«»].*["“”«»]', re.DOTALL)
"""From the first quotation mark to the last, because the data may contain some. Servers speak many languages."""


def _without_data(message: str, sqlstate: str | None) -> str:
    return _QUOTED.sub("", message) if (sqlstate or "").startswith("22") else message


def _read_redis_error(error: BaseException) -> str:
    """Return the message without the command. No regular expression, which would take seconds for a long message with many parentheses."""
    command, pipeline, message = str(error).rpartition(") of pipeline")
    if pipeline:
        message = f"{command.partition(' (')[0]} of pipeline{message}"
    return message.partition(", with args beginning with: ")[0]


def _read_mongo_error(error: BaseException) -> str:
    message, document, _ = str(error).partition("{")
    return message.rstrip(" ").removesuffix(":").removesuffix(", full error").removesuffix(" dup key") if document else message


_BSON_TYPE: Final = re.compile(r", of type: <class '([\w.]+)'>$")


def _read_bson_error(error: BaseException) -> str:
    """Return the type of the object that cannot be encoded, if the message names it."""
    match = _BSON_TYPE.search(str(error))
    return "invalid document" if match is None else f"invalid document: cannot encode an object of type {match[1]}"


def _read_parameter_error(error: BaseException) -> str:
    return str(error).partition(", value: ")[0]


_WITHOUT_VALUES: Final[Mapping[str, Callable[[Any], str]]] = {
    "sqlalchemy.exc.StatementError": _read_statement_error,
    "pydantic_core._pydantic_core.ValidationError": _read_validation_error,
    "psycopg.Error": _read_server_error,
    "psycopg2.Error": _read_server_error,
    "asyncpg.exceptions._base.PostgresError": _read_asyncpg_error,
    "sqlalchemy.dialects.postgresql.asyncpg.AsyncAdapt_asyncpg_dbapi.Error": _read_adapted_error,
    "redis.exceptions.RedisError": _read_redis_error,
    "redisvl.exceptions.RedisVLError": _read_redis_error,
    "pymongo.errors.PyMongoError": _read_mongo_error,
    "bson.errors.InvalidDocument": _read_bson_error,
    "botocore.exceptions.ParamValidationError": _read_parameter_error,
}
