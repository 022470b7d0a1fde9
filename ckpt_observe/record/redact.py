"""Redaction and limits, applied before a line is written to the journal and not only before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from ckpt_observe.record.attribute_check import check_attribute
from ckpt_observe.record.guard import record_fault
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.support import secrets
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.secrets import REDACTED, SECRET_NAME

MAX_TEXT: Final = 2000
"""Characters of one value. OpenTelemetry has no such limit and keeps an attribute of 10 MB."""
MAX_ATTRIBUTES: Final = 64
MAX_ITEMS: Final = 32
_MAX_INT: Final = (1 << 63) - 1
_MARGIN: Final = 256
"""Characters dropped at a cut before redaction: the rest of a secret that was cut off there may not look like one."""
_MAX_CACHED: Final = 128
"""Characters of texts and keys that are cached. Ids and names are shorter."""

_RANKS: Final = {
    name: rank for rank, name in enumerate((names.OUTCOME, names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_TYPE, names.ERROR_PHASE))
}
"""Attributes that are dropped last: an operation that failed must not look as if it had succeeded."""

_ID_LENGTH: Final = 36
_ID_CHARACTERS: Final = b"0123456789abcdef-"
"""A checkpoint's id is often a new UUID, and no pattern of a secret matches hex digits. `translate` leaves nothing of such a text: it takes
0.07 µs, `str.strip` 0.3, a regular expression 0.2, and redaction 1.5."""

_safe_keys: dict[str, set[type]] = {}
"""Keys whose name does not suggest a secret, and the types of value with which they were checked."""
_clean_keys: set[tuple[str, ...]] = set()
"""The keys of attributes that were harmless: see `is_clean`."""
_CONSTANTS: Final = (None, True, False)
_clean_values: set[Any] = set(_CONSTANTS)
"""Values that were harmless. Many come again: the parent of a checkpoint is the one that was saved last, and all have the same task id."""
_MAX_VALUES: Final = 128
_MAX_KEYS: Final = 10_000
_MAX_TYPES: Final = 16
_NO_TYPES: Final[frozenset[type]] = frozenset()


class Redacted(dict[str, Any]):
    """Attributes without secrets, so that nobody redacts them again."""

    __slots__ = ()


def text(raw: str, limit: int = MAX_TEXT) -> str:
    """Return the text without secrets, cut to `limit` characters. See `support.secrets` for what counts as a secret."""
    if len(raw) > 8 * limit:  # bounds the work on a hostile value
        clean = secrets.redact(_encodable(raw[: 8 * limit]))[: -min(_MARGIN, 4 * limit)] + "…"
    else:
        clean = secrets.redact(raw if type(raw) is str and raw.isascii() else _encodable(raw))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _encodable(raw: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot represent."""
    return str.encode(raw, "utf-8", "replace").decode()


_cached_text: Final = lru_cache(maxsize=2048)(text)


def name(raw: Any) -> str:
    """Return the name of a task, phase or type without secrets. Never raises, whatever the object."""
    if type(raw) is str and len(raw) <= _MAX_CACHED:
        return _cached_text(raw)
    return str(value(raw))


def attributes(raw: Mapping[Any, Any] | None, length: int = MAX_TEXT, count: int = MAX_ATTRIBUTES) -> Redacted:
    """Return attributes without secrets, of OpenTelemetry's types: at most `count`, and texts of at most `length` characters.

    Never raises. Of a mapping that raises, the attributes until then are returned.
    """
    clean = Redacted()
    try:
        if type(raw) is not dict and not isinstance(raw, Mapping):  # the first test is the usual case, and ten times as fast
            return clean
        items: Iterable[tuple[Any, Any]] = raw.items()
        if len(raw) > count:
            items = islice(sorted(items, key=_rank), count)
        for key, each in items:
            kind = type(each)
            if kind is str:
                if len(each) == _ID_LENGTH and each.isascii() and not each.encode().translate(None, _ID_CHARACTERS):
                    safe = each
                else:
                    safe = _cached_text(each) if length == MAX_TEXT and len(each) <= _MAX_CACHED else text(each, length)
            elif each is None or kind is bool or (kind is int and -_MAX_INT <= each <= _MAX_INT):
                safe = each
            else:
                safe = value(each, length)
            if type(key) is str and kind in _safe_keys.get(key, _NO_TYPES):
                clean[key] = safe
            else:
                label = name(key)
                check_attribute(label, safe)
                clean[label if len(label) <= length else label[: length - 1] + "…"] = REDACTED if _is_secret(label, each) else safe
    except Exception as error:  # raised by the mapping
        record_fault(error)
    return clean


def is_clean(raw: Mapping[Any, Any]) -> bool:
    """Return whether `attributes` would return the same attributes, which is the usual case. False if that is not certain.

    For instrumentors: their attributes have the same keys at every call, so the keys are checked as a whole, and only the first time.
    """
    try:
        if type(raw) is not dict or (tuple(raw) not in _clean_keys and not _add_clean_keys(raw)):
            return False
        for each in raw.values():
            if each in _clean_values:
                continue
            if type(each) is str:
                is_id = len(each) == _ID_LENGTH and not each.encode().translate(None, _ID_CHARACTERS)
                if not is_id and not _is_clean_text(each):
                    return False
            elif type(each) is not int or not -_MAX_INT <= each <= _MAX_INT:
                return False
    except Exception as error:  # a value without a hash, or another thread changed the dict meanwhile
        raise_host_exception(error)
        return False
    return True


def _is_clean_text(raw: str) -> bool:
    """Return whether a text has no secret, and remember it."""
    if len(raw) > _MAX_CACHED or text(raw) != raw:
        return False
    if len(_clean_values) >= _MAX_VALUES:
        _clean_values.clear()
        _clean_values.update(_CONSTANTS)
    _clean_values.add(raw)
    return True


def _add_clean_keys(raw: dict[Any, Any]) -> bool:
    """Remember the keys of these attributes, if all of them are known to be harmless with such values."""
    keys = tuple(raw)
    if len(keys) > MAX_ATTRIBUTES or len(_clean_keys) >= _MAX_CACHED:
        return False
    if not all(type(key) is str and type(raw[key]) in _safe_keys.get(key, _NO_TYPES) for key in keys):
        return False
    _clean_keys.add(keys)
    return True


def _is_secret(label: str, each: Any) -> bool:
    """Return whether the key says that the value is secret. Remember harmless keys."""
    match = SECRET_NAME.search(label) if label not in ATTRIBUTES else None
    if match is not None:
        return not (isinstance(each, int | float) and match[0].lower() == "token")  # a number of tokens is not secret
    if len(label) <= _MAX_CACHED and (label in _safe_keys or len(_safe_keys) < _MAX_KEYS):
        types = _safe_keys.setdefault(label, set())
        if len(types) < _MAX_TYPES:
            types.add(type(each))
    return False


def _rank(item: tuple[Any, Any]) -> int:
    key = item[0]
    return _RANKS.get(key, len(_RANKS)) if key in ATTRIBUTES else len(_RANKS) + 1


def value(raw: Any, length: int = MAX_TEXT) -> Any:
    """Return a value of one of OpenTelemetry's types, without secrets. Never raises, whatever the object."""
    try:
        if isinstance(raw, (list, tuple)):
            items = [_scalar(item, length) for item in raw[: min(MAX_ITEMS, length // 8)]]
            return items if len({type(item) for item in items}) <= 1 else [str(item) for item in items]
        return _scalar(raw, length)
    except Exception as error:
        raise_host_exception(error)
        return f"<{type(raw).__name__[:64]}>"


def _scalar(raw: Any, length: int) -> Any:
    if raw is None or isinstance(raw, bool):
        return raw
    if isinstance(raw, float):
        return float(raw)
    if isinstance(raw, int):
        return int(raw) if -(1 << 63) <= raw < 1 << 63 else f"<int of {raw.bit_length()} bits>"
    if isinstance(raw, str):
        return text(raw, length)
    item = getattr(raw, "item", None)  # a NumPy or torch scalar
    if callable(item) and getattr(raw, "size", 0) == 1 and isinstance(inner := item(), bool | int | float | str):
        return _scalar(inner, length)
    return f"<{type(raw).__name__[:64]}>"  # only the type: the content of a state must not become telemetry
