"""What is patched: one row a target. Tables of these rows wrap, unwrap, feed the contract tests and the `doctor` command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Wrapper: TypeAlias = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""wrapt's signature: `(wrapped, instance, args, kwargs)`."""


class WrapperMaker(Protocol):
    """Makes the wrapper once the callable is known, so that nothing about the callable is asked again at each call."""

    def wrapper_for(self, original: Any, /) -> Wrapper: ...


@dataclass(frozen=True, slots=True)
class Target:
    """One callable of somebody else's library."""

    module: str
    """The module that defines it; patched when that module is imported."""
    path: str
    """`function` or `Class.method` within the module."""
    wrapper: Wrapper | WrapperMaker
    required: bool = True
    """Its absence is worth a warning: the library is then observed only in part."""
    why: str = ""
    """What is learnt here, or why it may be absent."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.path}"

    def wrapper_for(self, original: Any) -> Wrapper:
        make = getattr(self.wrapper, "wrapper_for", None)
        return self.wrapper if make is None else make(original)  # type: ignore[return-value]
