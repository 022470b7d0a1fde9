"""Switching on and off, waiting for imports, and telling what could not be patched."""

import importlib
import logging
import sys
import threading

import pytest

from ckpt_observe.instrument.instrumentor import Target
from ckpt_observe.instrument.patching import PatchedCallable


@pytest.fixture
def instrumentor(world):
    made = world.toy.ToyInstrumentor()
    yield made
    made.uninstrument()


def states(instrumentor):
    return {report.target: report.state for report in instrumentor.report()}


def with_rows(world, *rows):
    class Other(world.toy.ToyInstrumentor):
        def targets(self):
            return rows

    return Other()


def test_report_follows_the_switch(instrumentor):
    """Off, then patched or waiting for its import, then patched, then off."""
    assert set(states(instrumentor).values()) == {"off"}
    instrumentor.instrument()
    assert states(instrumentor)["toylib.save"] == "patched"
    assert states(instrumentor)["toylib.extra.prune"] == "waiting"
    importlib.import_module("toylib.extra")
    assert set(states(instrumentor).values()) == {"patched"}
    instrumentor.uninstrument()
    assert set(states(instrumentor).values()) == {"off"}


def test_cancelled_wait_patches_nothing(instrumentor):
    """A module imported after `uninstrument` is left as it is; switched on again, the old wait is used again."""
    instrumentor.instrument()
    instrumentor.uninstrument()
    extra = importlib.import_module("toylib.extra")
    assert type(extra.prune) is not PatchedCallable
    instrumentor.instrument()
    assert type(extra.prune) is PatchedCallable


def test_missing_targets_are_told_once(world, caplog):
    """Function, method, module: each is reported as missing; the required ones are warned of, once, with the tested versions."""
    wrapper = world.toy.observed
    other = with_rows(
        world,
        Target("toylib", "gone", wrapper),
        Target("toylib", "Store.gone", wrapper, required=False),
        Target("toylib.gone", "save", wrapper),
        Target("toylib.gone.deeper", "save", wrapper),
        Target("toylib", "save", wrapper),
    )
    with caplog.at_level(logging.WARNING):
        other.instrument()
        other.instrument()
    assert list(states(other).values()) == ["missing"] * 4 + ["patched"]
    assert [record.args[1] for record in caplog.records] == ["toylib.gone", "toylib.gone.save", "toylib.gone.deeper.save"]
    assert "(tested with toylib>=1)" in caplog.text
    other.uninstrument()


def test_missing_target_is_tried_again(world):
    """A target that came into being is patched by the next `instrument`."""
    other = with_rows(world, Target("toylib", "born", world.toy.observed, required=False))
    other.instrument()
    world.lib.born = lambda: 1
    other.instrument()
    assert list(states(other).values()) == ["patched"]
    other.uninstrument()


def test_reloaded_module_is_reported_and_patched_again(world, instrumentor):
    """Reloading puts new originals there: the report says so, and `instrument` patches them."""
    instrumentor.instrument()
    importlib.reload(world.lib)
    assert states(instrumentor)["toylib.save"] == "failed"
    instrumentor.instrument()
    assert states(instrumentor)["toylib.save"] == "patched"
    world.lib.save(1)
    assert len(world.toy.operations) == 1


def test_what_cannot_be_patched_is_reported(world, caplog):
    """A target that is no function is told with the reason, and the others are patched."""
    other = with_rows(world, Target("toylib", "Store", world.toy.observed), Target("toylib", "save", world.toy.observed))
    other.instrument()
    assert [report.state for report in other.report()] == ["failed", "patched"]
    assert "toylib.Store is a type" in other.report()[0].detail
    other.uninstrument()


def test_broken_table_does_not_raise(world, caplog):
    """An instrumentor that cannot name its targets is logged."""

    class Broken(world.toy.ToyInstrumentor):
        def targets(self):
            raise RuntimeError("no table")

    Broken().instrument()
    assert "toy is not observed" in caplog.text


def test_fault_in_a_hook_does_not_break_the_import(world, instrumentor, monkeypatch, caplog):
    """The user's import succeeds whatever we do in it."""
    instrumentor.instrument()
    monkeypatch.setattr(instrumentor, "_patch_all", lambda name, module: 1 / 0)
    assert importlib.import_module("toylib.extra").prune() == 1
    assert "toylib.extra is not observed" in caplog.text


def test_instrumenting_in_the_midst_of_an_import(world, tmp_path, monkeypatch, caplog):
    """Called from inside the library's own import, what is not defined yet is waited for, not called missing."""
    (tmp_path / "halfway.py").write_text("import toy_start\ndef save(): return 1\n")
    (tmp_path / "toy_start.py").write_text("start()\n")
    monkeypatch.syspath_prepend(tmp_path)
    other = with_rows(world, Target("halfway", "save", world.toy.observed))
    monkeypatch.setattr("builtins.start", other.instrument, raising=False)
    halfway = importlib.import_module("halfway")
    assert list(states(other).values()) == ["waiting"]
    assert caplog.records == []
    other.instrument()
    assert type(halfway.save) is PatchedCallable
    other.uninstrument()
    for name in ("halfway", "toy_start"):
        del sys.modules[name]


def test_threads_may_switch_together(world, instrumentor):
    """Many threads switching on and off, and calling, leave one wrapper or none, and never a wrong result."""
    original, start, wrong = world.lib.save, threading.Barrier(8), []

    def work(number):
        start.wait()
        for _ in range(100):
            (instrumentor.instrument if number % 2 else instrumentor.uninstrument)()
            if world.lib.save(number) != {"saved": number}:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    instrumentor.instrument()
    assert world.lib.save.__wrapped__ is original
    instrumentor.uninstrument()
    assert world.lib.save is original
