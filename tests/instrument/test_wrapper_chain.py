"""Our wrapper is found and removed wherever it is, with every supported version of wrapt."""

from __future__ import annotations

from types import ModuleType

import pytest
import wrapt

from ckpt_observe.instrument.wrapper_chain import (
    MAX_WRAPPERS,
    MissingTargetError,
    is_wrapped_by,
    remove_wrapper,
    resolve,
    resolve_owner,
    wrapper_chain,
)


def pass_through(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


@pytest.fixture
def library():
    class Base:
        def save(self):
            return "saved"

    module = ModuleType("library")
    module.Base = Base
    module.Special = type("Special", (Base,), {})
    return module


def test_inherited_method_is_resolved_at_its_base_class(library):
    """The parent is the class that was named, the owner is the class that defines the method."""
    assert resolve(library, "Special.save")[0] is library.Special
    assert resolve_owner(library, "Special.save")[0] is library.Base


def test_unknown_name(library):
    """The error names the module and the path."""
    with pytest.raises(MissingTargetError, match=r"library has no Base\.load"):
        resolve(library, "Base.load")
    assert not is_wrapped_by(library, "Base.load", object())
    assert remove_wrapper(library, "Base.load", object(), created_attribute=False)


@pytest.mark.parametrize("position", range(3))
def test_wrapper_is_removed_from_any_position(library, position):
    """The wrappers above and below it stay in place and are still called."""
    wrappers = [wrapt.wrap_function_wrapper(library, "Base.save", pass_through) for _ in range(3)]
    removed = wrappers.pop(position)
    assert is_wrapped_by(library, "Base.save", removed)
    assert remove_wrapper(library, "Base.save", removed, created_attribute=False)
    chain = wrapper_chain(vars(library.Base)["save"])
    assert [id(layer) for layer in chain[:-1]] == [id(wrapper) for wrapper in reversed(wrappers)]
    assert library.Base().save() == "saved"


def test_computed_attribute(library):
    """A wrapper that a module's `__getattr__` returns cannot be removed; any other wrapper is already gone."""
    wrapper = wrapt.FunctionWrapper(lambda: "saved", pass_through)
    library.__getattr__ = {"lazy": wrapper}.__getitem__
    assert is_wrapped_by(library, "lazy", wrapper)
    assert not remove_wrapper(library, "lazy", wrapper, created_attribute=True)
    assert remove_wrapper(library, "lazy", object(), created_attribute=True)


def test_endless_chain_ends():
    """A cycle ends the chain; an object that always has another `__wrapped__` is an error."""

    class Cycle:
        @property
        def __wrapped__(self):
            return self

    class Endless:
        @property
        def __wrapped__(self):
            return Endless()

    assert len(wrapper_chain(Cycle())) == 1
    with pytest.raises(RuntimeError, match=str(MAX_WRAPPERS)):
        wrapper_chain(Endless())
