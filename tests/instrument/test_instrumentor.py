"""Instrumenting and uninstrumenting, waiting for imports, and reporting what could not be patched."""

import importlib
import logging
import sys
import threading

import pytest

from ckpt_observe.instrument import patching
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.targets import Target


@pytest.fixture
def instrumentor(modules):
    instrumentor = modules.toy.ToyInstrumentor()
    yield instrumentor
    instrumentor.uninstrument()


def states(instrumentor):
    return {report.target: report.state for report in instrumentor.report()}


def with_targets(modules, *rows):
    class Other(modules.toy.ToyInstrumentor):
        def targets(self):
            return rows

        def families(self):
            return ()

    return Other()


def test_report_follows_instrument_and_uninstrument(instrumentor):
    """A target is off, then patched or waiting for its import, then patched, then off."""
    assert set(states(instrumentor).values()) == {"off"}
    instrumentor.instrument()
    assert states(instrumentor)["toylib.save"] == "patched"
    assert states(instrumentor)["toylib.extra.prune"] == "waiting"
    importlib.import_module("toylib.extra")
    assert set(states(instrumentor).values()) == {"patched"}
    instrumentor.uninstrument()
    assert set(states(instrumentor).values()) == {"off"}


def test_module_imported_after_uninstrument_is_not_patched(instrumentor):
    """A module imported after `uninstrument` stays unpatched; the next `instrument` patches it."""
    instrumentor.instrument()
    instrumentor.uninstrument()
    extra = importlib.import_module("toylib.extra")
    assert type(extra.prune) is not PatchedCallable
    instrumentor.instrument()
    assert type(extra.prune) is PatchedCallable


def test_missing_targets_are_reported_and_warned_about_once(modules, caplog):
    """A missing function, method or module is reported; required ones get one warning that names the tested versions."""
    wrapper = modules.toy.observed
    other = with_targets(
        modules,
        Target("toylib", "gone", wrapper),
        Target("toylib", "Store.gone", wrapper, required=False),
        Target("toylib.gone", "save", wrapper),
        Target("toylib.gone.deeper", "save", wrapper),
        Target("toylib", "save", wrapper),
    )
    with caplog.at_level(logging.WARNING):
        other.instrument()
        other.instrument()
    assert list(states(other).values()) == ["renamed"] * 4 + ["patched"]
    assert [record.args[1] for record in caplog.records] == ["toylib.gone", "toylib.gone.save", "toylib.gone.deeper.save"]
    assert "(tested with toylib>=1)" in caplog.text
    other.uninstrument()


def test_missing_target_is_tried_again(modules):
    """A target that was missing and now exists is patched by the next `instrument`."""
    other = with_targets(modules, Target("toylib", "born", modules.toy.observed, required=False))
    other.instrument()
    modules.lib.born = lambda: 1
    other.instrument()
    assert list(states(other).values()) == ["patched"]
    other.uninstrument()


def test_reloaded_module_is_reported_and_patched_again(modules, instrumentor):
    """Reloading replaces the originals: the report shows it, and `instrument` patches the new ones."""
    instrumentor.instrument()
    importlib.reload(modules.lib)
    assert states(instrumentor)["toylib.save"] == "failed"
    instrumentor.instrument()
    assert states(instrumentor)["toylib.save"] == "patched"
    modules.lib.save(1)
    assert len(modules.toy.operations) == 1


def test_target_that_is_not_a_function_is_reported(modules, caplog):
    """A target that is not a function is reported with the reason, and the others are patched."""
    other = with_targets(modules, Target("toylib", "Store", modules.toy.observed), Target("toylib", "save", modules.toy.observed))
    other.instrument()
    assert [report.state for report in other.report()] == ["failed", "patched"]
    assert "toylib.Store is a type" in other.report()[0].detail
    other.uninstrument()


def test_exception_in_targets_is_logged(modules, caplog):
    """If `targets` raises, `instrument` logs it and does not raise."""

    class Broken(modules.toy.ToyInstrumentor):
        def targets(self):
            raise RuntimeError("no table")

    Broken().instrument()
    assert "toy is not observed" in caplog.text


def test_fault_in_a_hook_does_not_break_the_import(modules, instrumentor, monkeypatch, caplog):
    """The host program's import succeeds even if our hook raises."""
    instrumentor.instrument()
    monkeypatch.setattr(instrumentor, "_patch_all", lambda name, module: 1 / 0)
    assert importlib.import_module("toylib.extra").prune() == 1
    assert "toylib.extra is not observed" in caplog.text


def test_instrumenting_during_the_import_of_the_library(modules, tmp_path, monkeypatch, caplog):
    """If the library itself is being imported, targets not defined yet are reported as waiting, not as renamed."""
    (tmp_path / "halfway.py").write_text("import toy_start\ndef save(): return 1\n")
    (tmp_path / "toy_start.py").write_text("start()\n")
    monkeypatch.syspath_prepend(tmp_path)
    other = with_targets(modules, Target("halfway", "save", modules.toy.observed))
    monkeypatch.setattr("builtins.start", other.instrument, raising=False)
    halfway = importlib.import_module("halfway")
    assert list(states(other).values()) == ["waiting"]
    assert caplog.records == []
    other.instrument()
    assert type(halfway.save) is PatchedCallable
    other.uninstrument()
    for name in ("halfway", "toy_start"):
        del sys.modules[name]


def test_target_that_two_threads_patch(modules, instrumentor, monkeypatch):
    """If another thread patches a target at the same moment, `uninstrument` puts the original back all the same."""
    apply, original, other_threads = patching.apply, modules.lib.save, [instrumentor.instrument]

    def apply_while_another_thread_does(*arguments):
        patch = apply(*arguments)
        if other_threads:
            other_threads.pop()()
        return patch

    monkeypatch.setattr(patching, "apply", apply_while_another_thread_does)
    instrumentor.instrument()
    assert modules.lib.save.__wrapped__ is original
    instrumentor.uninstrument()
    assert modules.lib.save is original


def test_threads_may_instrument_concurrently(modules, instrumentor):
    """Threads that instrument, uninstrument and call concurrently leave one wrapper or none, and every result is right."""
    original, start, wrong = modules.lib.save, threading.Barrier(8), []

    def work(number):
        start.wait()
        for _ in range(100):
            (instrumentor.instrument if number % 2 else instrumentor.uninstrument)()
            if modules.lib.save(number) != {"saved": number}:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    instrumentor.instrument()
    assert modules.lib.save.__wrapped__ is original
    instrumentor.uninstrument()
    assert modules.lib.save is original
