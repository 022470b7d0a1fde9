"""An instrumentor of the toy library that keeps its operations in lists, for tests to read."""

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import MemberArgument
from ckpt_observe.instrument.targets import Family, Target
from ckpt_observe.instrument.wrappers import ObservedCall

PATHS = (
    "save",
    "later",
    "Store.save",
    "Store.open",
    "Store.check",
    "Store.asave",
    "Store.parts",
    "Store.aparts",
    "Special.inherited",
    "json.dumps",
)
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

    def release(self):
        self.suspend()

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
    call = observed

    def targets(self):
        rows = [Target("toylib", path, self.call) for path in PATHS]
        codec = MemberArgument(self, "toylib.Codec", "codec")
        return [
            *rows,
            Target("toylib.extra", "prune", self.call),
            Target("toylib.extra", "json.dumps", self.call),
            Target("toylib", "Pipe.__init__", codec),
        ]

    def families(self):
        return (
            Family("toylib", "Backend", {"put": self.call, "get": self.call}),
            Family("toylib", "Codec", {"encode": self.call}, members=("JsonCodec",)),
        )


def explode(*args):
    raise RuntimeError("our code failed")


class FailingBegin(ToyInstrumentor):
    """Fails at the start of every call."""

    call = ObservedCall(explode, faults.append)


class FailingResult(ToyInstrumentor):
    """Fails when a result is recorded."""

    call = ObservedCall(begin, faults.append, explode)
