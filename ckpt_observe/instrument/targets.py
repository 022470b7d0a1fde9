"""The rows of an instrumentor's table: targets, which are single callables, and families, which are base classes with all subclasses."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from ckpt_observe.instrument.wrappers import Wrapper
from ckpt_observe.support.host_exceptions import raise_host_exception

State: TypeAlias = Literal["patched", "renamed", "absent", "not installed", "waiting", "off", "failed"]
STATES: Final[Mapping[State, str]] = {
    "patched": "It is observed.",
    "renamed": "The installed version of the library has no such callable, although it should: it was renamed or removed.",
    "absent": "The installed version of the library does not have it, as expected.",
    "not installed": "The package is not installed.",
    "waiting": "Its module is not imported yet; it is patched when that happens.",
    "off": "The instrumentor is switched off.",
    "failed": "It could not be patched, or another package replaced it afterwards.",
}


class WrapperFactory(Protocol):
    """Creates a wrapper once the callable is available, so that calls need not inspect it again."""

    def wrapper_for(self, original: Any, declared: Any = None, /) -> Wrapper:
        """Return the wrapper. `declared` is the method of the family's base class that the callable overrides, if it is in a family."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a package in which a row exists."""

    package: str = ""
    """Name on PyPI; empty: the package of the instrumentor."""
    since: str = ""
    before: str = ""

    def include(self, version: str) -> bool:
        """Return whether the row exists in this version. An unreadable or unknown version is included."""
        release = _release(version)
        return not release or (release >= _release(self.since) and (not self.before or release < _release(self.before)))


@dataclass(frozen=True, slots=True)
class Target:
    """One callable of a library."""

    module: str
    """The module that defines it. It is patched when that module is imported."""
    path: str
    """`function` or `Class.method` within the module."""
    wrapper: Wrapper | WrapperFactory
    required: bool = True
    """Whether to warn if it is missing, because the library is then observed only in part."""
    why: str = ""
    """What is recorded here, or why it may be missing."""
    versions: Versions = Versions()

    @property
    def name(self) -> str:
        return f"{self.module}.{self.path}"

    def wrapper_for(self, original: Any) -> Wrapper:
        return wrapper_for(self.wrapper, original)


@dataclass(frozen=True, slots=True)
class Family:
    """A base class of a library with all its subclasses: those that exist, and those that are defined later, in any module or function.

    A method is patched in the class that defines it, which may be a mixin. A patched copy of an inherited method would look like an
    override, and libraries ask classes what they override.
    """

    module: str
    path: str
    """The base class within the module. A `Protocol` has members only by `members`, `Instrumentor.adopt` and explicit inheritance."""
    methods: Mapping[str, Wrapper | WrapperFactory]
    """The row of each method."""
    declared: tuple[str, ...] = ()
    """Methods that the base class has in all supported versions. If it lacks one, that method is reported as renamed."""
    members: tuple[str, ...] = ()
    """Classes of the module that implement a `Protocol` without inheriting from it."""
    when: str = ""
    """The module after whose import the subclasses exist, if it is not `module`."""
    include_base: bool = False
    """Whether the methods of the base class itself do work. Those of most base classes raise NotImplementedError."""
    required: bool = True
    why: str = ""
    versions: Versions = Versions()

    @property
    def name(self) -> str:
        return f"{self.module}.{self.path}"


@dataclass(frozen=True, slots=True)
class TargetReport:
    """Whether one target, or one method of a family's class, is patched, and why not."""

    target: str
    state: State
    """One of `STATES`."""
    detail: str = ""
    """Why it is not patched. Empty for `patched` and `off`."""


def wrapper_for(row: Wrapper | WrapperFactory, original: Any, declared: Any = None) -> Wrapper:
    """Return the wrapper of a row for a callable."""
    create = getattr(row, "wrapper_for", None)
    return row if create is None else create(original, declared)  # type: ignore[return-value]


@functools.cache
def installed_version(package: str) -> str:
    """Return the installed version of a package, or an empty string. Reads the file system, once per package."""
    if not package:
        return ""
    from importlib import metadata  # noqa: PLC0415 - when a library is imported: it takes 10 ms

    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError, OSError) as error:
        raise_host_exception(error)
        return ""


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: `(4, 3, 1)` for `4.3.1rc2`."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()
