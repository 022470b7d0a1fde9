"""Finds the error code of an exception, or of the exception that explains it: a cause, a context, or a member of a group.

For each exception, the most specific source counts: the table of the observed library, a code that the exception carries itself, the
native code of its library (errno, SQLSTATE, ...), its message, its type. If none of them knows the exception or its causes, the failed
phase says what common types mean. Contexts come after causes, because an exception that was being handled need not be the reason.

Attributes and texts of exceptions are code of the host program. They are read only if a table asks for them, and may raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ckpt_observe.record import error_tables
from ckpt_observe.record.native_codes import NATIVE_CODES, NativeCodes
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support.host_exceptions import raise_host_exception

ErrorCodes = Mapping[str, str | Callable[[Any], str | None]]
"""By qualified name of a type, such as `langgraph.errors.GraphInterrupt`: its error code, or a function that returns the code of an
exception or None. Instead of a code, `ok` or `skipped` is the outcome of an operation that such an exception ends without a failure."""

NO_FAILURE: Final = ("ok", "skipped")
UNKNOWN: Final = "unknown.exception"
_MAX_EXCEPTIONS: Final = 32
"""Exceptions that are examined: a chain of retries can be long, and a group large."""

# The descriptors of the interpreter: subclasses may have properties with these names.
_cause_of: Final = BaseException.__dict__["__cause__"].__get__
_context_of: Final = BaseException.__dict__["__context__"].__get__
_suppresses_context: Final = BaseException.__dict__["__suppress_context__"].__get__
_members_of: Final = BaseExceptionGroup.__dict__["exceptions"].__get__


class Explanation(NamedTuple):
    """An error code, and the exception that it belongs to: the one that was raised, or one that explains it."""

    code: str
    error: BaseException


_SAME, _CAUSE, _CONTEXT = range(3)
"""How the raised exception refers to another one: it is the same, or the way there has causes only, or also contexts."""
_LookUp = Callable[[BaseException], str | None]


def explain(error: BaseException, phase: str | None, codes: ErrorCodes) -> Explanation:
    """Return the code of an exception. `phase` is the phase that failed; `codes` is the table of the observed library."""

    def by_tables(error: BaseException) -> str | None:
        return _look_up(error, codes)

    def by_phase(error: BaseException) -> str | None:
        return _by_type(error, _type_names(error), error_tables.PHASE_DEFAULTS.get(phase or "", {}))

    def by_default(error: BaseException) -> str | None:
        return _by_type(error, _type_names(error), error_tables.DEFAULTS)

    searches: tuple[tuple[_LookUp, int], ...] = (
        (by_tables, _CAUSE),
        (by_phase, _CAUSE),
        (by_tables, _CONTEXT),
        (by_phase, _CONTEXT),
        (by_default, _CONTEXT),
    )
    for look_up, last_link in searches:
        explanation = _search(error, look_up, last_link, _SAME, set())
        if explanation is not None:
            return explanation
    return Explanation(UNKNOWN, error)


def _search(error: BaseException, look_up: _LookUp, last_link: int, link: int, visited: set[int]) -> Explanation | None:
    """Return the explanation of the exception by itself, by a member of the group that it is, or by its cause or context."""
    if id(error) in visited or len(visited) >= _MAX_EXCEPTIONS:
        return None
    visited.add(id(error))
    code = look_up(error)
    if code is not None and link <= _last_link_for(code):
        return Explanation(code, error)
    if issubclass(type(error), BaseExceptionGroup):
        members = _members_of(error)[:_MAX_EXCEPTIONS]
        explanation = min((_search(member, look_up, last_link, link, visited) for member in members), key=_rank)
        if explanation is not None:
            return explanation
    cause = _cause_of(error)
    if cause is not None:
        return _search(cause, look_up, last_link, max(link, _CAUSE), visited)
    context = _context_of(error)
    if context is not None and last_link == _CONTEXT and not _suppresses_context(error):
        return _search(context, look_up, last_link, _CONTEXT, visited)
    return None


def is_caused_by(error: BaseException, cause: BaseException) -> bool:
    """Return whether an exception is `cause`, contains it, or was raised because of it or while it was handled."""
    waiting, visited = [error], set[int]()
    while waiting and len(visited) < _MAX_EXCEPTIONS:
        each = waiting.pop()
        if each is cause:
            return True
        visited.add(id(each))
        members = _members_of(each)[:_MAX_EXCEPTIONS] if issubclass(type(each), BaseExceptionGroup) else ()
        related = (_context_of(each), _cause_of(each), *members)
        waiting += [other for other in related if other is not None and id(other) not in visited]
    return False


def _last_link_for(code: str) -> int:
    """Return how far away an exception with this code may be: a failure while a pause or cancellation is handled is still a failure."""
    if code in NO_FAILURE:
        return _SAME
    return _CAUSE if ERROR_CODES[code].error_class == "cancelled" else _CONTEXT


def _rank(explanation: Explanation | None) -> int:
    """Order the members of a group: failures, also unknown ones, come before cancellations and control flow."""
    if explanation is None:
        return 1
    return 3 if explanation.code in NO_FAILURE else 2 if ERROR_CODES[explanation.code].error_class == "cancelled" else 0


def _look_up(error: BaseException, codes: ErrorCodes) -> str | None:
    """Return the code of one exception according to the tables, regardless of its causes."""
    types = _type_names(error)
    return (
        _by_type(error, types, codes)
        or _carried_code(error)
        or _by_native_code(error, types)
        or _by_message(error, types)
        or _by_type(error, types, error_tables.TYPES)
    )


def _type_names(error: BaseException) -> list[str]:
    return [qualified_name(base) for base in type(error).__mro__]


def _by_type(error: BaseException, types: list[str], codes: ErrorCodes) -> str | None:
    for name in types if codes else ():
        code = codes.get(name)
        if code is None:
            continue
        if callable(code):
            try:
                code = code(error)
            except Exception as caught:  # it reads attributes of the exception
                raise_host_exception(caught)
                code = None
        if isinstance(code, str) and (code in ERROR_CODES or code in NO_FAILURE):
            return code
    return None


def _carried_code(error: BaseException) -> str | None:
    code = read_attribute(error, "code")
    return code if isinstance(code, str) and code in ERROR_CODES and code != UNKNOWN else None


def _by_native_code(error: BaseException, types: list[str]) -> str | None:
    sources = next((NATIVE_CODES[name] for name in types if name in NATIVE_CODES), ())
    codes = (_translate(_read_path(error, path), table) for path, table in sources)
    return next((code for code in codes if code is not None), None)


def _translate(native: Any, table: NativeCodes) -> str | None:
    try:
        code = table.codes.get(native)
        return table.codes.get(table.generalize(native)) if code is None and table.generalize is not None else code
    except TypeError:  # a library may have anything there, such as None or a text instead of a number
        return None


def _by_message(error: BaseException, types: list[str]) -> str | None:
    rows = [row for name in types for row in error_tables.MESSAGES.get(name, ())]
    if not rows:
        return None
    try:
        message = str(error)
    except Exception as caught:  # raised by its `__str__`
        raise_host_exception(caught)
        return None
    return next((code for text, code in rows if text in message), None)


def _read_path(error: BaseException, path: str) -> Any:
    value: Any = error
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else read_attribute(value, name)
    return value


def qualified_name(kind: type) -> str:
    """Return module and name of a type. Both can be properties of its metaclass."""
    return f"{read_attribute(kind, '__module__')}.{read_attribute(kind, '__qualname__')}"


def read_attribute(owner: Any, name: str) -> Any:
    """Return an attribute of an exception of the host program; None if it does not exist or cannot be read."""
    try:
        return getattr(owner, name, None)
    except Exception as error:  # raised by a property
        raise_host_exception(error)
        return None
