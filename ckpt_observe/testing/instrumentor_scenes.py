"""The scenes behind `InstrumentorContract`, each the whole life of one process."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.wrapper_chain import resolve_owner, wrapper_chain
from ckpt_observe.testing.instrumentor_props import manners_of, outcome_of, places, stand_in, wrap_with_closure, wrap_with_wrapt


@dataclass(frozen=True)
class Stage:
    """What every scene is given."""

    instrumentor: str
    use: str

    def make(self) -> Instrumentor:
        module, _, name = self.instrumentor.partition(":")
        made: Instrumentor = getattr(importlib.import_module(module), name)()
        return made

    def run(self) -> None:
        exec(compile(self.use, "<use>", "exec"), {"__name__": "use"})  # noqa: S102  # the test's own source


def order(stage: Stage, steps: Sequence[str]) -> None:
    instrumentor, before = stage.make(), None
    for index, step in enumerate(steps):
        if step != "import":
            getattr(instrumentor, step)()
            continue
        found = places(instrumentor)
        if "instrument" not in steps[:index]:
            before = [(place.raw, place.own) for place in found]
    on = [step for step in steps if step != "import"][-1] == "instrument"
    assert [place.layers for place in found] == [int(on)] * len(found), instrumentor.report()
    stage.run()
    instrumentor.uninstrument()
    assert not any(place.layers for place in found)
    for place, (raw, own) in zip(found, before or (), strict=before is not None):
        assert place.raw is raw, f"{place.target.name} is not the object it was"
        assert place.own == own, f"{place.target.name} left a copy on the subclass"
    stage.run()


def twice(stage: Stage) -> None:
    first, second = stage.make(), stage.make()
    found = places(first)
    before = [place.raw for place in found]
    for instrumentor in (first, first, second):
        instrumentor.instrument()
        assert [place.layers for place in found] == [1] * len(found)
    stage.run()
    for instrumentor in (second, first, first):
        instrumentor.uninstrument()
    assert all(place.raw is raw for place, raw in zip(found, before, strict=True))


def third_party(stage: Stage, style: str, side: str) -> None:
    instrumentor = stage.make()
    found = places(instrumentor)
    if side == "over":
        instrumentor.instrument()
    wrap = wrap_with_wrapt if style == "wrapt" else wrap_with_closure
    theirs = [wrap(place) for place in found]
    instrumentor.instrument()
    assert [place.layers for place in found] == [1] * len(found), "a wrapper of ours was not seen under theirs"
    stage.run()
    instrumentor.uninstrument()
    stage.run()
    assert all(place.raw is raw for place, raw in zip(found, theirs, strict=True)), "theirs is no longer outermost"
    for place in found:
        ours = next((layer for layer in wrapper_chain(place.raw) if type(layer) is PatchedCallable), None)
        held = style == "closure" and side == "over"
        assert (ours is not None and not ours._self_enabled) if held else ours is None
    instrumentor.instrument()
    assert [place.layers for place in found] == [1] * len(found)
    stage.run()


def odd_calls(stage: Stage) -> None:
    for place in places(stage.make()):
        for outcome in (object(), KeyError("the host's own")):
            original, own = place.raw, place.own
            setattr(place.parent, place.attribute, stand_in(original, outcome))
            instrumentor = stage.make()
            instrumentor.instrument()
            assert outcome_of(getattr(place.parent, place.attribute)) is outcome, place.target.name
            instrumentor.uninstrument()
            setattr(place.parent, place.attribute, original) if own else delattr(place.parent, place.attribute)


def renamed(stage: Stage) -> None:
    for place in places(stage.make()):
        owner, attribute, original = resolve_owner(sys.modules[place.target.module], place.target.path)
        delattr(owner, attribute)
        instrumentor = stage.make()
        instrumentor.instrument()
        states = {report.target: report.state for report in instrumentor.report()}
        inherited = hasattr(place.parent, attribute)
        assert states[place.target.name] == ("patched" if inherited else "missing"), states
        instrumentor.uninstrument()
        setattr(owner, attribute, original)


def manners(stage: Stage) -> None:
    instrumentor = stage.make()
    found = places(instrumentor)
    before = [manners_of(place) for place in found]
    instrumentor.instrument()
    assert [manners_of(place) for place in found] == before


SCENES = {scene.__name__: scene for scene in (order, twice, third_party, odd_calls, renamed, manners)}

if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    SCENES[sys.argv[1]](Stage(given.pop("instrumentor"), given.pop("use")), **given)
