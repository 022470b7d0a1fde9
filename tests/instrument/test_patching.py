"""Applying a patch and removing it again."""

import copy
import functools
import inspect
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import wrapt

from ckpt_observe.instrument import patching

PATHS = ["save", "Store.save", "Store.open", "Store.check", "Store.asave", "Special.inherited"]


@pytest.fixture
def calls():
    return []


@pytest.fixture
def patch(modules, calls):
    def wrapper(wrapped, instance, args, kwargs):
        calls.append(instance)
        return wrapped(*args, **kwargs)

    return lambda path: patching.apply(modules.lib, path, lambda _original: wrapper)


def test_wrapper_gets_the_bound_instance(modules, patch, calls):
    """The instance is None for functions and static methods, and the class for class methods."""
    for path in ("save", "Store.save", "Store.open", "Store.check"):
        patch(path)
    store = modules.lib.Special()
    modules.lib.save(1)
    store.save(1)
    modules.lib.Store.save(store, 1)
    modules.lib.Special.open()
    store.check()
    assert calls == [None, store, store, modules.lib.Special, None]


@pytest.mark.parametrize("path", PATHS)
def test_removal_restores_the_same_object(modules, patch, path):
    """Afterwards the parent's `__dict__` has the same object as before, or none if it was inherited."""
    parent, name, _ = wrapt.resolve_path(modules.lib, path)
    before = vars(parent).get(name)
    assert patch(path).remove()
    assert vars(parent).get(name) is before


def test_patching_twice_shares_one_wrapper(modules, patch, calls):
    """The second patch reuses the first wrapper, even if another package wrapped it in between."""
    first = patch("save")
    wrapt.wrap_function_wrapper(modules.lib, "save", lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
    assert patch("save").handle is first.handle
    modules.lib.save(1)
    assert len(calls) == 1


def test_shared_wrapper_stays_until_its_last_user_removes_it(modules, patch, calls):
    """Two libraries that use one driver can be switched off one after the other."""
    original = modules.lib.save
    first, second = patch("save"), patch("save")
    first.remove()
    modules.lib.save(1)
    assert len(calls) == 1
    assert second.in_place
    second.remove()
    assert modules.lib.save is original


@pytest.mark.parametrize("path", ["Store.save", "Store.check", "Store.asave"])
def test_method_of_a_class_is_the_same_object_at_every_access(modules, patch, path):
    """Libraries ask whether a subclass overrides a method: `type(session).pop_item is SQLiteSession.pop_item`."""
    patch(path)
    name = path.partition(".")[2]
    assert getattr(modules.lib.Special, name) is getattr(modules.lib.Store, name)


def test_wrapper_beneath_ours_can_be_removed(modules, patch, calls):
    """A method accessed on the class before and after calls what is wrapped then."""
    store, original = modules.lib.Store(), vars(modules.lib.Store)["save"]
    theirs = wrapt.wrap_function_wrapper(modules.lib, "Store.save", lambda *args: "theirs")
    handle = patch("Store.save").handle
    assert modules.lib.Store.save(store, 1) == "theirs"
    assert handle.__wrapped__ is theirs
    handle.__wrapped__ = original
    assert modules.lib.Store.save(store, 1) == (store, 1)


def test_patched_method_has_the_code_of_the_original(modules, patch):
    """Libraries compare code objects to find overrides, and read defaults: both are those of the original, on the class and bound."""
    original = vars(modules.lib.Store)["save"]
    patch("Store.save")
    for method in (modules.lib.Store.save, modules.lib.Store().save):
        assert method.__code__ is original.__code__
        assert method.__defaults__ == original.__defaults__
        assert inspect.getfile(method) == inspect.getfile(original)


def test_override_that_names_the_method_of_its_base_class(modules, patch, calls):
    """A method with `functools.wraps(Base.method)` is not taken for the patched method of the base class."""
    patch("Store.save")

    class Override(modules.lib.Store):
        @functools.wraps(modules.lib.Store.save)
        def save(self, value):
            return value

    patching.apply(Override, "save", lambda _original: lambda wrapped, _instance, args, _kwargs: ("observed", wrapped(*args)))
    assert Override().save(1) == ("observed", 1)


def test_old_reference_works_unobserved_after_removal(modules, patch, calls):
    """A reference to the patched function still works after removal, and is not observed."""
    save_patch = patch("save")
    reference = modules.lib.save
    save_patch.remove()
    assert reference(1) == {"saved": 1}
    assert calls == []


def test_hidden_wrapper_is_switched_off(modules, patch, calls):
    """A wrapper hidden in another package's closure is only switched off, and a new patch goes on top."""
    first = patch("save")
    inner = modules.lib.save
    modules.lib.save = lambda *args: inner(*args)  # noqa: PLW0108  # it has no __wrapped__
    first.remove()
    second = patch("save")
    assert not first.in_place
    assert second.in_place
    modules.lib.save(1)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["Store", "TOTAL"])
def test_only_functions_can_be_patched(modules, patch, name):
    """A class or a value is not wrapped, because isinstance and arithmetic would change."""
    modules.lib.TOTAL = 3
    with pytest.raises(TypeError, match=f"toylib.{name} is a"):
        patch(name)


def test_copies_are_by_reference(modules, patch):
    """copy and deepcopy return the patched function itself; for a method, they return the method of the copied instance."""
    patch("save")
    patch("Store.save")
    store = modules.lib.Store()
    assert copy.copy(modules.lib.save) is modules.lib.save
    assert copy.deepcopy({"f": modules.lib.save})["f"] is modules.lib.save
    assert copy.copy(store.save)(1)[0] is store
    copied, bound = copy.deepcopy((store, store.save))
    assert bound(1)[0] is copied is not store


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_by_reference(modules, patch, protocol):
    """Functions, bound and unbound methods, class and static methods unpickle as the objects with their names."""
    for path in PATHS:
        patch(path)

    def round_trip(value):
        return pickle.loads(pickle.dumps(value, protocol))

    lib, store = modules.lib, modules.lib.Special()
    assert round_trip(lib.save) is lib.save
    assert isinstance(round_trip(store.save)(1)[0], lib.Special)
    assert round_trip(lib.Store.save)(store, 1) == (store, 1)
    assert round_trip(lib.Special.open)() == round_trip(store.open)() == (lib.Special, "a")
    assert round_trip(lib.Store.check)(4) == round_trip(store.check)(4) == 4
    assert round_trip(store.inherited)() == 1


def test_alias_and_old_reference_pickle(modules, patch):
    """A function patched under a second name, and a reference from before its removal, pickle as the function."""
    modules.lib.alias = modules.lib.save
    first, second = patch("save"), patch("alias")
    assert first.handle is not second.handle
    assert pickle.loads(pickle.dumps(modules.lib.alias)) is modules.lib.save
    first.remove()
    assert pickle.loads(pickle.dumps(first.handle)) is modules.lib.save


def test_original_cannot_be_pickled_while_patched(modules, patch):
    """A documented limit: pickle checks that the name refers to the object, but it refers to the wrapper."""
    original = modules.lib.save
    patch("save").remove()
    assert pickle.loads(pickle.dumps(original)) is original
    patch("save")
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(original)


def test_inspection_shows_the_original(modules, patch):
    """Signature, kind, name and source are those of the original."""
    original = modules.lib.Store.asave
    patch("Store.asave")
    patched = modules.lib.Store.asave
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
    print("all calls returned")
"""


def test_patched_callables_work_in_a_spawn_pool(tmp_path):
    """In a process that is not instrumented, a pickled patched callable is the plain function."""
    script = tmp_path / "main.py"
    script.write_text(SPAWN)
    toy = str(Path(__file__).parent / "toy")
    process = subprocess.run([sys.executable, script], env={"PYTHONPATH": toy}, capture_output=True, text=True, check=False)
    assert process.stdout == "all calls returned\n", process.stderr


def test_patching_while_patching(modules, patch):
    """If a signal handler imports an observed module during a patch, that module is patched too, and nothing hangs."""

    class Interrupted:
        def wrapper_for(self, original):
            patch("later")
            return lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs)

    apply = threading.Thread(target=patching.apply, args=(modules.lib, "save", Interrupted().wrapper_for), daemon=True)
    apply.start()
    apply.join(10)
    assert [type(function) for function in (modules.lib.save, modules.lib.later)] == [patching.PatchedCallable] * 2
