"""A function of an imported module is patched for the module that imports it, and for nobody else."""

import inspect
import json

import pytest

from ckpt_observe.instrument import patching


@pytest.fixture
def calls():
    return []


@pytest.fixture
def patch(modules, calls):
    def wrapper(wrapped, instance, args, kwargs):
        calls.append(args)
        return wrapped(*args, **kwargs)

    return lambda path: patching.apply(modules.lib, path, lambda _original: wrapper)


def test_only_the_importing_module_is_patched(modules, patch, calls):
    """The library's calls are observed; those of others are not, and `json` is unchanged."""
    original = json.dumps
    patch("json.dumps")
    assert modules.lib.export([1]) == "[1]"
    json.dumps([2])
    assert calls == [([1],)]
    assert json.dumps is original


def test_view_looks_like_the_module(modules, patch):
    """Everything that is not patched is that of the module, also what is changed later."""
    patch("json.dumps")
    view = modules.lib.json
    assert (view.__name__, view.__spec__, view.__doc__, dir(view)) == (json.__name__, json.__spec__, json.__doc__, dir(json))
    assert view.JSONDecodeError is json.JSONDecodeError
    assert inspect.ismodule(view)
    with pytest.raises(AttributeError):
        view.missing  # noqa: B018


def test_removal_restores_the_module(modules, patch):
    """The library has `json` itself again when the last patch is removed."""
    first, second = patch("json.dumps"), patch("json.loads")
    first.remove()
    assert modules.lib.json is not json
    assert modules.lib.json.dumps is json.dumps
    second.remove()
    assert modules.lib.json is json


def test_submodule_is_patched_for_everybody(modules, patch, calls):
    """A module of the library itself has no view."""
    extra = __import__("toylib.extra").extra
    patch("extra.prune")
    extra.prune(5)
    assert len(calls) == 1
    assert modules.lib.extra is extra
