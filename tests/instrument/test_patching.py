"""Putting a wrapper on, and taking it off again."""

import copy
import inspect
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import wrapt

from ckpt_observe.instrument import patching
from ckpt_observe.instrument.instrumentor import Target

PATHS = ["save", "Store.save", "Store.open", "Store.check", "Store.asave", "Special.inherited"]


@pytest.fixture
def calls():
    return []


@pytest.fixture
def patch(world, calls):
    def wrapper(wrapped, instance, args, kwargs):
        calls.append(instance)
        return wrapped(*args, **kwargs)

    return lambda path: patching.apply(Target("toylib", path, wrapper), world.lib)


def test_wrapper_sees_what_the_callable_is_bound_to(world, patch, calls):
    """Functions and static methods have no instance, methods have theirs, class methods the class they were called on."""
    for path in ("save", "Store.save", "Store.open", "Store.check"):
        patch(path)
    store = world.lib.Special()
    world.lib.save(1)
    store.save(1)
    world.lib.Store.save(store, 1)
    world.lib.Special.open()
    store.check()
    assert calls == [None, store, store, world.lib.Special, None]


@pytest.mark.parametrize("path", PATHS)
def test_removal_restores_the_same_object(world, patch, path):
    """What is found in the dictionary afterwards is what was found there before, or nothing if it was inherited."""
    parent, name, _ = wrapt.resolve_path(world.lib, path)
    before = vars(parent).get(name)
    assert patch(path).remove()
    assert vars(parent).get(name) is before


def test_patching_twice_shares_one_wrapper(world, patch, calls):
    """The second patch is the first, also when somebody wrapped in between."""
    first = patch("save")
    wrapt.wrap_function_wrapper(world.lib, "save", lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
    assert patch("save").handle is first.handle
    world.lib.save(1)
    assert len(calls) == 1


def test_reference_kept_from_before_removal_falls_silent(world, patch, calls):
    """Somebody who took the patched function keeps a working function, unobserved."""
    handle = patch("save")
    kept = world.lib.save
    handle.remove()
    assert kept(1) == {"saved": 1}
    assert calls == []


def test_hidden_wrapper_is_switched_off(world, patch, calls):
    """A closure that does not tell what it calls keeps ours alive, but silent, and a new patch goes on top."""
    first = patch("save")
    inner = world.lib.save
    world.lib.save = lambda *args: inner(*args)  # noqa: PLW0108  # it hides what it calls
    first.remove()
    second = patch("save")
    assert not first.in_place
    assert second.in_place
    world.lib.save(1)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["Store", "TOTAL"])
def test_what_is_no_function_is_refused(world, patch, name):
    """A class or a value is not wrapped: isinstance and arithmetic would no longer be what they were."""
    world.lib.TOTAL = 3
    with pytest.raises(TypeError, match=f"toylib.{name} is a"):
        patch(name)


def test_copies_are_by_reference(world, patch):
    """copy and deepcopy of a patched function give the function; of a method, the method of the copied instance."""
    patch("save")
    patch("Store.save")
    store = world.lib.Store()
    assert copy.copy(world.lib.save) is world.lib.save
    assert copy.deepcopy({"f": world.lib.save})["f"] is world.lib.save
    assert copy.copy(store.save)(1)[0] is store
    copied, bound = copy.deepcopy((store, store.save))
    assert bound(1)[0] is copied is not store


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_by_reference(world, patch, protocol):
    """Functions, bound and unbound methods, class and static methods come back as what their names mean."""
    for path in PATHS:
        patch(path)

    def again(value):
        return pickle.loads(pickle.dumps(value, protocol))

    lib, store = world.lib, world.lib.Special()
    assert again(lib.save) is lib.save
    assert isinstance(again(store.save)(1)[0], lib.Special)
    assert again(lib.Store.save)(store, 1) == (store, 1)
    assert again(lib.Special.open)() == again(store.open)() == (lib.Special, "a")
    assert again(lib.Store.check)(4) == again(store.check)(4) == 4
    assert again(store.inherited)() == 1


def test_second_name_and_late_reference_pickle(world, patch):
    """A function patched under a second name, and one kept since before it was unpatched, pickle as the first."""
    world.lib.alias = world.lib.save
    first, second = patch("save"), patch("alias")
    assert first.handle is not second.handle
    assert pickle.loads(pickle.dumps(world.lib.alias)) is world.lib.save
    first.remove()
    assert pickle.loads(pickle.dumps(first.handle)) is world.lib.save


def test_original_cannot_be_pickled_while_patched(world, patch):
    """The known limit: pickle asks whether the name still means the object, and it does not."""
    early = world.lib.save
    patch("save").remove()
    assert pickle.loads(pickle.dumps(early)) is early
    patch("save")
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(early)


def test_inspection_sees_through(world, patch):
    """Signature, kind, name and source are the original's."""
    original = world.lib.Store.asave
    patch("Store.asave")
    patched = world.lib.Store.asave
    assert inspect.signature(patched) == inspect.signature(original)
    assert inspect.iscoroutinefunction(patched)
    assert inspect.getsource(patched) == inspect.getsource(original)
    assert (patched.__name__, patched.__qualname__) == ("asave", "Store.asave")


SPAWN = """
import multiprocessing, toylib, toy
if __name__ == "__main__":
    toy.ToyInstrumentor().instrument()
    store = toylib.Special()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(toylib.save, [1, 2]) == [{"saved": 1}, {"saved": 2}]
        assert pool.apply(store.save, (3,))[1] == 3
        assert pool.apply(toylib.Special.open) == (toylib.Special, "a")
        assert pool.apply(toylib.Store.check, (4,)) == 4
    print("all came back")
"""


def test_patched_callables_go_through_a_spawn_pool(tmp_path):
    """Handed to processes that are not instrumented, they are the plain functions there."""
    script = tmp_path / "main.py"
    script.write_text(SPAWN)
    toy = str(Path(__file__).parent / "toy")
    done = subprocess.run([sys.executable, script], env={"PYTHONPATH": toy}, capture_output=True, text=True, check=False)
    assert done.stdout == "all came back\n", done.stderr


def test_patching_in_the_midst_of_patching(world, patch):
    """A signal handler that imports an observed module while another one is being patched patches it too, and does not hang."""

    class Interrupted:
        def wrapper_for(self, original):
            patch("later")
            return lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs)

    apply = threading.Thread(target=patching.apply, args=(Target("toylib", "save", Interrupted()), world.lib), daemon=True)
    apply.start()
    apply.join(10)
    assert [type(each) for each in (world.lib.save, world.lib.later)] == [patching.PatchedCallable] * 2
