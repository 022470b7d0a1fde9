"""An instrumentor of the toy library that writes down what becomes of its operations."""

from ckpt_observe.instrument.instrumentor import Instrumentor, Target
from ckpt_observe.instrument.wrappers import ObservedCall

PATHS = ("save", "later", "Store.save", "Store.open", "Store.check", "Store.asave", "Store.parts", "Store.aparts", "Special.inherited")
faults: list[Exception] = []
current: list["Operation"] = []
"""The operations that are current now, innermost last."""


class Operation:
    """Keeps the order of its life as words."""

    def __init__(self):
        self.life = []
        self.error = None
        self.noted = None
        operations.append(self)

    def __enter__(self):
        self.life.append("enter")
        current.append(self)

    def __exit__(self, kind, error, trace):
        self.life.append("exit")
        self.error = error
        if self in current:
            current.remove(self)

    def suspend(self):
        self.life.append("suspend")
        current.remove(self)

    def resume(self):
        self.life.append("resume")
        current.append(self)


operations: list[Operation] = []


def begin(instance, args, kwargs):
    return Operation()


def note(operation, result):
    operation.noted = result


observed = ObservedCall(begin, faults.append, note)


class ToyInstrumentor(Instrumentor):
    name = "toy"
    library = "toylib"
    supported = "toylib>=1"

    def targets(self):
        rows = [Target("toylib", path, observed) for path in PATHS]
        return [*rows, Target("toylib.extra", "prune", observed)]


class BrokenReaders(ToyInstrumentor):
    """Fails in every way that we can fail."""

    def targets(self):
        def explode(*args):
            raise RuntimeError("a reader failed")

        return [Target(row.module, row.path, ObservedCall(explode, faults.append)) for row in super().targets()]


class BrokenNotes(ToyInstrumentor):
    def targets(self):
        def explode(*args):
            raise RuntimeError("a note failed")

        return [Target(row.module, row.path, ObservedCall(begin, faults.append, explode)) for row in super().targets()]
