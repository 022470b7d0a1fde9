"""What the scenes of `InstrumentorContract` are played with: places of targets, a third party's wrappers, stand-ins for the host."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import operator
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wrapt

from ckpt_observe.instrument.instrumentor import Instrumentor, Target
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.wrapper_chain import resolve, wrapper_chain


@dataclass(frozen=True)
class Place:
    """Where a target is: what holds it, under which name, and whether it is inherited."""

    target: Target
    parent: Any
    attribute: str

    @property
    def raw(self) -> Any:
        return resolve(sys.modules[self.target.module], self.target.path)[2]

    @property
    def own(self) -> bool:
        return self.attribute in vars(self.parent)

    @property
    def layers(self) -> int:
        """How many wrappers of ours are on it."""
        return sum(type(layer) is PatchedCallable for layer in wrapper_chain(self.raw))


def places(instrumentor: Instrumentor) -> list[Place]:
    """Imports what the table names. A required target must be there."""
    found = []
    for target in instrumentor.targets():
        try:
            parent, attribute, _ = wrapt.resolve_path(target.module, target.path)
        except (ImportError, AttributeError):
            assert not target.required, f"{target.name} is required and not there"
        else:
            found.append(Place(target, parent, attribute))
    return found


def manners_of(place: Place) -> dict[str, object]:
    function = operator.attrgetter(place.target.path)(sys.modules[place.target.module])
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isroutine)
    return {
        "signature": str(inspect.signature(function)),
        "kinds": [kind(function) for kind in kinds],
        "names": (function.__name__, function.__qualname__, function.__module__, function.__doc__),
        "pickles": _attempt(lambda: pickle.loads(pickle.dumps(function)) == function),  # noqa: S301  # our own bytes
        "copies": copy.copy(function) == function and copy.deepcopy(function) == function,
        "bound to": getattr(function, "__self__", None),
    }


def _attempt(action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:
        return type(error).__name__


def wrap_with_wrapt(place: Place) -> Any:
    def theirs(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*args, **kwargs)

    return wrapt.wrap_function_wrapper(place.parent, place.attribute, theirs)


def wrap_with_closure(place: Place) -> Any:
    raw: Any = place.raw
    kind = next((kind for kind in (classmethod, staticmethod) if isinstance(raw, kind)), None)

    @functools.wraps(raw)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        if not inspect.isclass(place.parent):
            return raw(*args, **kwargs)
        if kind is staticmethod:
            return raw.__get__(None, place.parent)(*args, **kwargs)
        first, *rest = args
        bound = raw.__get__(None, first) if kind is classmethod else raw.__get__(first, type(first))
        return bound(*rest, **kwargs)

    outermost = theirs if kind is None else kind(theirs)
    setattr(place.parent, place.attribute, outermost)
    return outermost


def stand_in(original: Any, outcome: object) -> Any:
    """A callable of the same kind that takes anything and ends with this outcome."""

    def plain(*_args: object, **_kwargs: object) -> object:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def coroutine(*_args: object, **_kwargs: object) -> object:
        return plain()

    def generator(*_args: object, **_kwargs: object) -> Any:
        yield plain()

    async def async_generator(*_args: object, **_kwargs: object) -> Any:
        yield plain()

    function = getattr(original, "__func__", original)
    if inspect.iscoroutinefunction(function):
        made: Callable[..., Any] = coroutine
    elif inspect.isgeneratorfunction(function):
        made = generator
    else:
        made = async_generator if inspect.isasyncgenfunction(function) else plain
    return type(original)(made) if isinstance(original, classmethod | staticmethod) else made


def outcome_of(function: Callable[..., Any]) -> object:
    try:
        result = function()
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        if inspect.isasyncgen(result):
            return asyncio.run(anext(result))
        return next(result) if inspect.isgenerator(result) else result
    except Exception as error:
        return error
