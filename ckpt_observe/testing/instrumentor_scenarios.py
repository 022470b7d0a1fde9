"""The scenarios of `InstrumentorContract`. Each runs in its own process: `python -m ckpt_observe.testing.instrumentor_scenarios NAME JSON`.

This module does not import pytest, so that a scenario starts with nothing but the instrumentor loaded.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import inspect
import json
import operator
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import wrapt

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.wrapper_chain import resolve, resolve_owner, wrapper_chain


@dataclass(frozen=True)
class Subject:
    """The instrumentor under test, and source code that uses its library."""

    instrumentor: str
    use: str

    def create(self) -> Instrumentor:
        module, _, name = self.instrumentor.partition(":")
        instrumentor: Instrumentor = getattr(importlib.import_module(module), name)()
        return instrumentor

    def run(self) -> None:
        exec(compile(self.use, "<use>", "exec"), {"__name__": "use"})  # noqa: S102  # the test's own source


@dataclass(frozen=True)
class Location:
    """Where a target is: the object that holds it, and its name there."""

    target: Target
    parent: Any
    attribute: str

    @property
    def raw(self) -> Any:
        return resolve(sys.modules[self.target.module], self.target.path)[2]

    @property
    def is_own(self) -> bool:
        """Whether the parent defines the attribute itself instead of inheriting it."""
        return self.attribute in vars(self.parent)

    @property
    def layers(self) -> int:
        """The number of our wrappers on the target."""
        return sum(type(layer) is PatchedCallable for layer in wrapper_chain(self.raw))


def locate_targets(instrumentor: Instrumentor) -> list[Location]:
    """Import the modules that the instrumentor patches and return where its targets are. AssertionError if a required one is missing."""
    locations = []
    for target in instrumentor.targets():
        try:
            parent, attribute, _ = wrapt.resolve_path(target.module, target.path)
        except (ImportError, AttributeError):
            assert not target.required, f"{target.name} is required and does not exist"
        else:
            locations.append(Location(target, parent, attribute))
    return locations


# Scenarios


def order(subject: Subject, steps: Sequence[str]) -> None:
    instrumentor, originals = subject.create(), None
    for index, step in enumerate(steps):
        if step != "import":
            getattr(instrumentor, step)()
            continue
        locations = locate_targets(instrumentor)
        if "instrument" not in steps[:index]:
            originals = [(location.raw, location.is_own) for location in locations]
    is_on = [step for step in steps if step != "import"][-1] == "instrument"
    assert [location.layers for location in locations] == [int(is_on)] * len(locations), instrumentor.report()
    subject.run()
    instrumentor.uninstrument()
    assert not any(location.layers for location in locations)
    for location, (raw, was_own) in zip(locations, originals or (), strict=originals is not None):
        assert location.raw is raw, f"{location.target.name} is not the object it was"
        assert location.is_own == was_own, f"{location.target.name} left a copy on the subclass"
    subject.run()


def twice(subject: Subject) -> None:
    first, second = subject.create(), subject.create()
    locations = locate_targets(first)
    originals = [location.raw for location in locations]
    for instrumentor in (first, first, second):
        instrumentor.instrument()
        assert [location.layers for location in locations] == [1] * len(locations)
    subject.run()
    for instrumentor in (second, first, first):
        instrumentor.uninstrument()
    assert all(location.raw is raw for location, raw in zip(locations, originals, strict=True))


def third_party(subject: Subject, style: str, side: str) -> None:
    instrumentor = subject.create()
    locations = locate_targets(instrumentor)
    if side == "over":
        instrumentor.instrument()
    wrap = _wrap_with_wrapt if style == "wrapt" else _wrap_with_closure
    wrappers = [wrap(location) for location in locations]
    instrumentor.instrument()
    assert [location.layers for location in locations] == [1] * len(locations), "our wrapper was not recognized beneath another one"
    subject.run()
    instrumentor.uninstrument()
    subject.run()
    assert all(location.raw is raw for location, raw in zip(locations, wrappers, strict=True)), "the third party is no longer outermost"
    for location in locations:
        ours = next((layer for layer in wrapper_chain(location.raw) if type(layer) is PatchedCallable), None)
        cannot_be_removed = style == "closure" and side == "over"
        assert (ours is not None and not ours._self_enabled) if cannot_be_removed else ours is None
    instrumentor.instrument()
    assert [location.layers for location in locations] == [1] * len(locations)
    subject.run()


def odd_calls(subject: Subject) -> None:
    for location in locate_targets(subject.create()):
        for outcome in (object(), KeyError("the host's own")):
            original, was_own = location.raw, location.is_own
            setattr(location.parent, location.attribute, _stand_in(original, outcome))
            instrumentor = subject.create()
            instrumentor.instrument()
            assert _outcome_of(getattr(location.parent, location.attribute)) is outcome, location.target.name
            instrumentor.uninstrument()
            setattr(location.parent, location.attribute, original) if was_own else delattr(location.parent, location.attribute)


def renamed(subject: Subject) -> None:
    for location in locate_targets(subject.create()):
        owner, attribute, original = resolve_owner(sys.modules[location.target.module], location.target.path)
        delattr(owner, attribute)
        instrumentor = subject.create()
        instrumentor.instrument()
        states = {report.target: report.state for report in instrumentor.report()}
        is_inherited = hasattr(location.parent, attribute)
        assert states[location.target.name] == ("patched" if is_inherited else "renamed"), states
        instrumentor.uninstrument()
        setattr(owner, attribute, original)


def behaviour(subject: Subject) -> None:
    instrumentor = subject.create()
    locations = locate_targets(instrumentor)
    before = [_behaviour_of(location) for location in locations]
    instrumentor.instrument()
    assert [_behaviour_of(location) for location in locations] == before


# What the scenarios use


def _behaviour_of(location: Location) -> dict[str, object]:
    function = operator.attrgetter(location.target.path)(sys.modules[location.target.module])
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


def _wrap_with_wrapt(location: Location) -> Any:
    def wrapper(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*args, **kwargs)

    return wrapt.wrap_function_wrapper(location.parent, location.attribute, wrapper)


def _wrap_with_closure(location: Location) -> Any:
    raw: Any = location.raw
    kind = next((kind for kind in (classmethod, staticmethod) if isinstance(raw, kind)), None)

    @functools.wraps(raw)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not inspect.isclass(location.parent):
            return raw(*args, **kwargs)
        if kind is staticmethod:
            return raw.__get__(None, location.parent)(*args, **kwargs)
        first, *rest = args
        bound = raw.__get__(None, first) if kind is classmethod else raw.__get__(first, type(first))
        return bound(*rest, **kwargs)

    outermost = wrapper if kind is None else kind(wrapper)
    setattr(location.parent, location.attribute, outermost)
    return outermost


def _stand_in(original: Any, outcome: object) -> Any:
    """Return a callable of the same kind as the original that accepts any arguments and returns or raises the outcome."""

    def function(*_args: object, **_kwargs: object) -> object:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def coroutine(*_args: object, **_kwargs: object) -> object:
        return function()

    def generator(*_args: object, **_kwargs: object) -> Any:
        yield function()

    async def async_generator(*_args: object, **_kwargs: object) -> Any:
        yield function()

    plain = getattr(original, "__func__", original)
    if inspect.iscoroutinefunction(plain):
        stand_in: Callable[..., Any] = coroutine
    elif inspect.isgeneratorfunction(plain):
        stand_in = generator
    else:
        stand_in = async_generator if inspect.isasyncgenfunction(plain) else function
    return type(original)(stand_in) if isinstance(original, classmethod | staticmethod) else stand_in


def _outcome_of(function: Callable[..., Any]) -> object:
    try:
        result = function()
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        if inspect.isasyncgen(result):
            return asyncio.run(anext(result))
        return next(result) if inspect.isgenerator(result) else result
    except Exception as error:
        return error


SCENARIOS = {scenario.__name__: scenario for scenario in (order, twice, third_party, odd_calls, renamed, behaviour)}

if __name__ == "__main__":
    arguments = json.loads(sys.argv[2])
    SCENARIOS[sys.argv[1]](Subject(arguments.pop("instrumentor"), arguments.pop("use")), **arguments)
