"""Families: a base class with all its subclasses, whenever and wherever they are defined."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import sys
import weakref
from types import FunctionType, ModuleType
from typing import Protocol

import pytest

from ckpt_observe.instrument import families
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.targets import Family, Target, Versions
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline


class Saver:
    """The base class of a library."""

    def __init_subclass__(cls, *, kind="plain", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.kind = kind

    def put(self, id, state):
        raise NotImplementedError

    async def aput(self, id, state):
        raise NotImplementedError

    def items(self, count):
        raise NotImplementedError


class Early(Saver):
    def put(self, id, state):
        return id, state


class Serializer(Protocol):
    def dumps(self, value): ...


ROWS = {
    method: LibraryCall("toy", operation, lambda _saver, arguments: {names.ID: arguments.get("id")})
    for method, operation in (("put", "save"), ("aput", "save"), ("items", "list"), ("prune", "prune"))
}
SAVERS = Family("family_lib", "Saver", ROWS)
SERIALIZERS = Family("family_lib", "Serializer", {"dumps": LibraryCall("toy", "append", lambda _serializer, _arguments: {})})


class FamilyInstrumentor(Instrumentor):
    name = library = "family_lib"

    def targets(self):
        return ()

    def families(self):
        return SAVERS, SERIALIZERS


@pytest.fixture
def instrumentor(monkeypatch):
    module = ModuleType("family_lib")
    module.Saver, module.Serializer = Saver, Serializer
    monkeypatch.setitem(sys.modules, "family_lib", module)
    instrumentor = FamilyInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    instrumentor.uninstrument()


def operations(recording):
    return [(span.attributes[names.OPERATION], span.attributes.get(names.ID)) for span in recording.spans()]


def test_classes_of_any_age_are_observed(instrumentor, recording):
    """A class that existed before, one defined later in a function, and a class that inherits from it are observed."""

    class Late(Saver):
        def put(self, *args, **kwargs):
            return args, kwargs

    class Inheriting(Late):
        pass

    assert Early().put("a", 1) == ("a", 1)
    assert Late().put("b", state=2) == (("b",), {"state": 2})
    assert Inheriting().put(id="c", state=3) == ((), {"id": "c", "state": 3})
    assert operations(recording) == [("save", "a"), ("save", "b"), ("save", "c")]


def test_arguments_have_the_names_of_the_base_class(instrumentor, recording):
    """An override may rename its parameters; the position in the base class counts."""

    class Renaming(Saver):
        def put(self, key, value):
            return key

    Renaming().put("a", 1)
    assert operations(recording) == [("save", "a")]


def test_inherited_methods_are_not_wrapped(instrumentor):
    """No class gets an attribute that it did not define: libraries ask classes what they override."""

    class Late(Saver):
        def put(self, id, state):
            return id

    assert "aput" not in vars(Late)
    assert "aput" not in vars(Early)
    assert Late.aput is Saver.aput
    assert not hasattr(vars(Saver)["put"], "__wrapped__")


def test_methods_of_a_mixin_are_observed(instrumentor, recording):
    """A member may have its methods from a class beside the base class. Other classes that have them are not observed."""

    class Storing:
        def put(self, id, state):
            return id

    class Mixed(Storing, Saver):
        pass

    class Other(Storing):
        pass

    assert Other().put("a", 1) == "a"
    assert Mixed().put("b", 2) == "b"
    assert operations(recording) == [("save", "b")]
    assert "put" not in vars(Mixed)
    instrumentor.uninstrument()
    assert type(vars(Storing)["put"]) is FunctionType


def test_mixin_of_an_implementation_of_a_protocol(instrumentor, recording):
    """A class that implements a protocol is observed although another one, which inherits from the protocol, has the same mixin."""

    class Dumping:
        def dumps(self, value):
            return b"x"

    class Inheriting(Dumping, Serializer):
        pass

    class Duck(Dumping):
        pass

    instrumentor.adopt(SERIALIZERS.name, Inheriting())
    instrumentor.adopt(SERIALIZERS.name, Duck())
    Inheriting().dumps(1)
    Duck().dumps(1)
    assert operations(recording) == [("append", None)] * 2


def test_unhashable_class_is_observed(instrumentor, recording):
    """A metaclass that compares classes and defines no hash disturbs neither its own class nor the others, however old it is."""

    class Comparing(type):
        def __eq__(cls, other):
            return cls is other

        __hash__ = None

    class Unhashable(Saver, metaclass=Comparing):
        def put(self, id, state):
            return id

    Unhashable().put("late", 1)
    instrumentor.uninstrument()
    instrumentor.instrument()
    Unhashable().put("early", 1)
    Early().put("other", 1)
    assert operations(recording) == [("save", "late"), ("save", "early"), ("save", "other")]


def test_hook_of_the_base_class_still_runs(instrumentor):
    """The base class's own `__init_subclass__` is called, with its arguments, and is put back."""

    class Late(Saver, kind="special"):
        pass

    assert Late.kind == "special"
    instrumentor.uninstrument()
    assert inspect.getattr_static(Saver, "__init_subclass__").__func__.__module__ == __name__


def test_one_thing_is_one_operation(instrumentor, recording):
    """`super()`, delegation to another saver and an asynchronous twin are parts of the operation; another checkpoint is not."""

    class Inner(Saver):
        def put(self, id, state):
            return id

    class Outer(Inner):
        def put(self, id, state):
            super().put(id, state)
            Inner().put(id, state)
            return Inner().put(f"{id}-index", state)

    Outer().put("a", 1)
    assert sorted(operations(recording)) == [("save", "a"), ("save", "a-index")]


def test_async_override_may_be_a_plain_function(instrumentor, recording):
    """An override that returns somebody's coroutine is timed until it is awaited, because the base class says that it is a coroutine."""

    class Late(Saver):
        def aput(self, id, state):
            return self._work(id)

        async def _work(self, id):
            return id

    coroutine = Late().aput("a", 1)
    assert operations(recording) == []
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert operations(recording) == [("save", "a")]


def test_task_that_an_override_returns_is_not_replaced(instrumentor, recording):
    """An override may return a Task, which its caller can cancel; the operation lasts until the task is done."""

    class Late(Saver):
        def aput(self, id, state):
            return asyncio.ensure_future(asyncio.sleep(0, id))

    async def main():
        task = Late().aput("a", 1)
        assert isinstance(task, asyncio.Task)
        assert operations(recording) == []
        return await task

    assert asyncio.run(main()) == "a"
    assert operations(recording) == [("save", "a")]


def test_items_of_a_generator_are_counted(instrumentor, recording):
    """The count is right, also if the consumer stops early."""

    class Late(Saver):
        def items(self, count):
            yield from range(count)

    assert list(Late().items(3)) == [0, 1, 2]
    generator = Late().items(5)
    next(generator), next(generator)
    generator.close()
    assert [span.attributes[names.COUNT] for span in recording.spans()] == [3, 2]
    assert {span.attributes[names.OUTCOME] for span in recording.spans()} == {"ok"}


def test_duck_typed_object_is_adopted(instrumentor, recording):
    """An implementation of a Protocol that inherits from nothing is observed once an instance of it was adopted."""

    class Duck:
        def dumps(self, value):
            return b"x"

    Duck().dumps(1)
    instrumentor.adopt(SERIALIZERS.name, Duck())
    Duck().dumps(1)
    assert operations(recording) == [("append", None)]
    instrumentor.uninstrument()
    assert type(vars(Duck)["dumps"]) is FunctionType


def test_object_of_the_base_class_itself(instrumentor):
    """The methods of the base class are not patched, although a program hands over an object of it, as tests do."""
    instrumentor.adopt(SAVERS.name, Saver())
    assert type(vars(Saver)["put"]) is FunctionType


def test_originals_are_put_back(instrumentor):
    """After `uninstrument`, every class holds the function it was defined with, and new classes are not patched."""
    original = vars(Early)["put"].__wrapped__
    instrumentor.uninstrument()
    assert vars(Early)["put"] is original

    class Late(Saver):
        def put(self, id, state):
            return id

    assert type(vars(Late)["put"]) is FunctionType


def test_classes_are_not_kept_alive(instrumentor):
    """A class that the program drops can be collected."""

    def define():
        class Temporary(Saver):
            def put(self, id, state):
                return id

        return weakref.ref(Temporary)

    reference = define()
    gc.collect()
    assert reference() is None


def test_patched_methods_pickle(instrumentor):
    """A bound method of a member pickles by way of its object."""
    assert pickle.loads(pickle.dumps(Early().put))("a", 1) == ("a", 1)


def test_every_member_is_reported(instrumentor):
    """The report has a row for each patched method."""
    states = {report.target.rpartition(".")[2]: report.state for report in instrumentor.report() if "Early" in report.target}
    assert states == {"put": "patched"}


def test_classes_are_defined_during_a_report(instrumentor):
    """Other threads may define classes at any moment of a report."""
    defined = []

    def define(frame, _event, _argument):
        if frame.f_code.co_filename in (families.__file__, weakref.__file__):
            defined.append(type("Late", (Saver,), {"put": lambda _self, _id, _state: None}))
        return define

    previous = sys.gettrace()
    sys.settrace(define)
    try:
        instrumentor.report()
    finally:
        sys.settrace(previous)
    assert defined


@pytest.mark.parametrize(
    ("versions", "state"),
    [(Versions("pytest"), "renamed"), (Versions("pytest", since="9999"), "absent"), (Versions("pytest", before="1"), "absent")],
)
def test_renamed_and_absent_rows_differ(monkeypatch, caplog, versions, state):
    """A row that this version should have is renamed, with a warning; one that it should not have is absent, without."""

    class Changed(Instrumentor):
        name = library = "family_lib"

        def targets(self):
            return (Target("family_lib", "save", None, versions=versions),)

        def families(self):
            return (Family("family_lib", "Gone", {}, versions=versions),)

    monkeypatch.setitem(sys.modules, "family_lib", ModuleType("family_lib"))
    instrumentor = Changed()
    instrumentor.instrument()
    assert [report.state for report in instrumentor.report()] == [state] * 2
    assert ("is not observed" in caplog.text) == (state == "renamed")
    instrumentor.uninstrument()


def test_package_that_is_not_installed_is_reported():
    """A row whose package is not installed is neither renamed nor waiting."""

    class Missing(Instrumentor):
        name, library, package = "missing", "no_such_library", "no-such-package"

        def targets(self):
            return (Target("no_such_library", "save", None),)

    instrumentor = Missing()
    instrumentor.instrument()
    assert [report.state for report in instrumentor.report()] == ["not installed"]
    instrumentor.uninstrument()


def test_nested_operations_of_one_library_are_children(instrumentor, recording):
    """A load within a save is an operation of its own, below the save."""

    class Late(Saver):
        def put(self, id, state):
            return list(self.items(2))

        def items(self, count):
            yield from range(count)

    Late().put("a", 1)
    assert outline(recording.spans()) == "checkpoint.save\n  checkpoint.list"
