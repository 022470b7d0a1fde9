"""An instrumentor of the toy library that keeps its operations in lists, for tests to read."""

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.wrappers import ObservedCall

PATHS = ("save", "later", "Store.save", "Store.open", "Store.check", "Store.asave", "Store.parts", "Store.aparts", "Special.inherited")
faults: list[Exception] = []
current: list["Operation"] = []
"""The current operations, innermost last."""


class Operation:
    """Keeps the names of its methods in the order of their calls."""

    def __init__(self):
        self.events = []
        self.error = None
        self.result = None
        operations.append(self)

    def __enter__(self):
        self.events.append("enter")
        current.append(self)

    def __exit__(self, kind, error, trace):
        self.events.append("exit")
        self.error = error
        if self in current:
            current.remove(self)

    def suspend(self):
        self.events.append("suspend")
        current.remove(self)

    def resume(self):
        self.events.append("resume")
        current.append(self)


operations: list[Operation] = []


def begin(instance, args, kwargs):
    return Operation()


def record_result(operation, result):
    operation.result = result


observed = ObservedCall(begin, faults.append, record_result)


class ToyInstrumentor(Instrumentor):
    name = "toy"
    library = "toylib"
    supported = "toylib>=1"

    def targets(self):
        rows = [Target("toylib", path, observed) for path in PATHS]
        return [*rows, Target("toylib.extra", "prune", observed)]


class FailingBegin(ToyInstrumentor):
    """Fails at the start of every call."""

    def targets(self):
        def explode(*args):
            raise RuntimeError("begin failed")

        return [Target(row.module, row.path, ObservedCall(explode, faults.append)) for row in super().targets()]


class FailingResult(ToyInstrumentor):
    """Fails when a result is recorded."""

    def targets(self):
        def explode(*args):
            raise RuntimeError("record_result failed")

        return [Target(row.module, row.path, ObservedCall(begin, faults.append, explode)) for row in super().targets()]
