"""The instrumentors of the toy library pass the contract of all instrumentors."""

import pytest

from ckpt_observe.testing.instrumentors import ORDERS, InstrumentorContract

USE = """
import asyncio, toylib, toylib.extra
from concurrent.futures import Future
store, future = toylib.Special(), Future()
assert toylib.save(1) == {"saved": 1}
assert toylib.later(future) is future
future.set_result(1)
assert store.save(2) == (store, 2) and toylib.Store.save(store, 2) == (store, 2)
assert toylib.Special.open() == (toylib.Special, "a") and store.open("b") == (toylib.Special, "b")
assert store.check(3) == toylib.Store.check(3) == 3
assert store.inherited() == 1 and toylib.extra.prune(5) == 5
assert asyncio.run(store.asave(4)) == 4
assert list(store.parts()) == [0, 1, 2]
backend = toylib.LoudBackend()
assert backend.put("a", "x") == "a" and backend.get("a") == "X"
assert toylib.export([1]) == "[1]" and toylib.Pipe(toylib.JsonCodec()).send([1]) == "[1]"
async def collect(): return [part async for part in store.aparts()]
assert asyncio.run(collect()) == [0, 1, 2]
"""


class TestToy(InstrumentorContract):
    instrumentor = "toy:ToyInstrumentor"
    use = USE
    members = ("toylib.backends",)


class TestFailingBegin(InstrumentorContract):
    """Every `begin` raises."""

    instrumentor = "toy:FailingBegin"
    use = USE
    members = ("toylib.backends",)


class TestFailingResult(InstrumentorContract):
    """Every `record_result` raises."""

    instrumentor = "toy:FailingResult"
    use = USE
    members = ("toylib.backends",)


@pytest.mark.parametrize(("use", "message"), [("raise ValueError('broken')", "ValueError: broken"), ("os._exit(3)", "exit code 3")])
def test_control_detects_failures(use, message):
    """Control: a scenario that raises or dies fails its own test, and no other one."""

    class Broken(InstrumentorContract):
        instrumentor = "toy:ToyInstrumentor"

    Broken.use = f"import os; {use}"
    contract = Broken()
    for order in (ORDERS[0], ORDERS[-1]):  # the import first, and last
        with pytest.raises(AssertionError, match=message):
            contract.run("order", steps=order)
    with pytest.raises(AssertionError, match=message):
        contract.run("twice")
    contract.run("behaviour")
