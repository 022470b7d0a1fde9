"""The scenarios of `InstrumentorContract`: `python -m ckpt_observe.testing.instrumentor_scenarios MOMENT SUBJECT SCENARIO...`.

Subject and scenarios are JSON. Each scenario runs in a fork of this process, which imports the library before if MOMENT is `import-first`.
The last line of the output is a list of what they printed: an empty string for each that passed. This module does not import pytest, so
that a scenario starts with nothing but the instrumentor loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import importlib
import inspect
import json
import operator
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import wrapt

from ckpt_observe.instrument.families import subclasses
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.targets import Family, State
from ckpt_observe.instrument.wrapper_chain import resolve, resolve_owner, wrapper_chain

TIMEOUT = 200
"""Seconds after which a scenario is killed."""


@dataclass(frozen=True)
class Subject:
    """The instrumentor under test, and source code that uses its library."""

    instrumentor: str
    use: str
    members: Sequence[str] = ()
    """Modules with more classes of the families, imported after those that the instrumentor names."""

    def create(self) -> Instrumentor:
        module, _, name = self.instrumentor.partition(":")
        instrumentor: Instrumentor = getattr(importlib.import_module(module), name)()
        return instrumentor

    def run(self) -> None:
        exec(compile(self.use, "<use>", "exec"), {"__name__": "use"})  # noqa: S102  # the test's own source


@dataclass(frozen=True)
class Location:
    """Where a patched callable is: a target, or a method of a class of a family."""

    name: str
    root: Any
    """The module or class that `path` starts from."""
    path: str
    is_target: bool

    @property
    def parent(self) -> Any:
        """The object that has the callable. It changes if a module that the library imported is replaced by a view."""
        return resolve(self.root, self.path)[0]

    @property
    def attribute(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def raw(self) -> Any:
        return resolve(self.root, self.path)[2]

    @property
    def is_own(self) -> bool:
        """Whether the parent defines the attribute itself instead of inheriting it."""
        return self.attribute in vars(self.parent)

    @property
    def layers(self) -> int:
        """The number of our wrappers on it."""
        return sum(type(layer) is PatchedCallable for layer in wrapper_chain(self.raw))


def locate(subject: Subject, instrumentor: Instrumentor) -> list[Location]:
    """Import the modules that the instrumentor patches and return where its callables are. AssertionError if a required one is missing."""
    locations = {}
    for target in instrumentor.targets():
        try:
            location = Location(target.name, importlib.import_module(target.module), target.path, is_target=True)
            locations[location.name] = location
            assert location.raw is not None
        except (ImportError, AttributeError):
            locations.pop(target.name, None)
            assert not target.required, f"{target.name} is required and does not exist"
    for module in (*instrumentor.modules(), *subject.members):
        with contextlib.suppress(ImportError):  # of a row that is not required
            importlib.import_module(module)
    for family in instrumentor.families():
        methods = [(member, method) for member in _members_of(family) for method in family.methods if method in vars(member)]
        assert methods, f"{family.name} has no members"
        for member, method in methods:
            name = f"{member.__module__}.{member.__qualname__}.{method}"
            locations.setdefault(name, Location(name, member, method, is_target=False))
    return list(locations.values())


def _members_of(family: Family) -> list[type]:
    module = sys.modules[family.module]
    base = getattr(module, family.path)
    named = [getattr(module, name) for name in family.members]
    return [*([base] if family.include_base else ()), *named, *subclasses(base)]


# Scenarios


def order(subject: Subject, steps: Sequence[str]) -> None:
    instrumentor, originals = subject.create(), None
    for index, step in enumerate(steps):
        if step != "import":
            getattr(instrumentor, step)()
            continue
        locations = locate(subject, instrumentor)
        if "instrument" not in steps[:index]:
            originals = [(location.raw, location.is_own) for location in locations]
    is_on = [step for step in steps if step != "import"][-1] == "instrument"
    assert [location.layers for location in locations] == [int(is_on)] * len(locations), instrumentor.report()
    subject.run()
    instrumentor.uninstrument()
    assert not any(location.layers for location in locations)
    for location, (raw, was_own) in zip(locations, originals or (), strict=originals is not None):
        assert location.raw is raw, f"{location.name} is not the object it was"
        assert location.is_own == was_own, f"{location.name} left a copy on the subclass"
    subject.run()


def twice(subject: Subject) -> None:
    first, second = subject.create(), subject.create()
    locations = locate(subject, first)
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
    locations = locate(subject, instrumentor)
    if side == "over":
        instrumentor.instrument()
    wrap = _wrap_with_wrapt if style == "wrapt" else _wrap_with_closure
    for location in locations:
        wrap(location)
    wrappers = [location.raw for location in locations]  # two modules that import `json` have the same function, wrapped twice
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
    for location in locate(subject, subject.create()):
        for outcome in (object(), KeyError("the host's own")):
            original, was_own = location.raw, location.is_own
            parent = location.parent
            setattr(parent, location.attribute, _stand_in(original, outcome))
            instrumentor = subject.create()
            instrumentor.instrument()
            assert _outcome_of(getattr(location.parent, location.attribute)) is outcome, location.name
            instrumentor.uninstrument()
            setattr(parent, location.attribute, original) if was_own else delattr(parent, location.attribute)


def renamed(subject: Subject) -> None:
    declared = {f"{family.name}.{method}" for family in subject.create().families() for method in family.declared}
    for location in locate(subject, subject.create()):
        parent = location.parent
        owner, attribute, original = resolve_owner(location.root, location.path)
        if hasattr(object, attribute):  # such as `__init__`: every class has one
            continue
        delattr(owner, attribute)
        states = _states(subject)
        if location.is_target:
            assert states[location.name] == ("patched" if hasattr(parent, attribute) else "renamed"), states
        elif location.name in declared:
            assert states[location.name] == "renamed", "the base class has it in all supported versions"
        else:
            assert location.name not in states, "a class need not define every method of its family"
        setattr(owner, attribute, original)
    for family in subject.create().families():
        module = sys.modules[family.module]
        base = getattr(module, family.path)
        delattr(module, family.path)
        assert _states(subject)[family.name] == "renamed"
        setattr(module, family.path, base)


def behaviour(subject: Subject) -> None:
    instrumentor = subject.create()
    locations = locate(subject, instrumentor)
    before = [_behaviour_of(location) for location in locations]
    instrumentor.instrument()
    for location, behaviour_before in zip(locations, before, strict=True):
        assert _behaviour_of(location) == behaviour_before, (location.name, _behaviour_of(location), behaviour_before)


# What the scenarios use


def _states(subject: Subject) -> dict[str, State]:
    instrumentor = subject.create()
    instrumentor.instrument()
    states = {report.target: report.state for report in instrumentor.report()}
    instrumentor.uninstrument()
    return states


def _behaviour_of(location: Location) -> dict[str, object]:
    function = operator.attrgetter(location.path)(location.root)
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isroutine)
    return {
        "signature": str(inspect.signature(function)),
        "kinds": [kind(function) for kind in kinds],
        "names": (function.__name__, function.__qualname__, function.__module__, function.__doc__),
        "pickles": _attempt(lambda: pickle.loads(pickle.dumps(function)) == function),  # noqa: S301  # our own bytes
        "copies": copy.copy(function) == function and copy.deepcopy(function) == function,
        "bound to": getattr(function, "__self__", None),
        "same object": operator.attrgetter(location.path)(location.root) is function,
    }


def _attempt(action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:
        return type(error).__name__


def _wrap_with_wrapt(location: Location) -> None:
    def wrapper(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(location.parent, location.attribute, wrapper)


def _wrap_with_closure(location: Location) -> None:
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

    setattr(location.parent, location.attribute, wrapper if kind is None else kind(wrapper))


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


def run_in_fork(subject: Subject, name: str, arguments: dict[str, Any]) -> str:
    """Run a scenario in a fork of this process. Return what it printed if it failed, otherwise an empty string."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(TIMEOUT)
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(output.fileno(), stream.fileno())
                SCENARIOS[name](subject, **arguments)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return f"{output.read().decode(errors='replace')}\nexit code {code}" if code else ""


if __name__ == "__main__":
    subject, *scenarios = [json.loads(argument) for argument in sys.argv[2:]]
    subject = Subject(**subject)
    if sys.argv[1] == "import-first":
        locate(subject, subject.create())
    sys.stdout.flush()
    print(json.dumps([run_in_fork(subject, *scenario) for scenario in scenarios]))
