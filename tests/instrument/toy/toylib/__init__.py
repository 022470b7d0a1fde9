"""A library with one callable of each kind. It does not know that it is observed."""

from concurrent.futures import Future


def save(state, *, fail=None):
    if fail is not None:
        raise fail
    return {"saved": state}


def later(future: Future) -> Future:
    return future


class Base:
    def inherited(self, value=1):
        return value


class Store(Base):
    def save(self, state):
        return (self, state)

    @classmethod
    def open(cls, name="a"):
        return (cls, name)

    @staticmethod
    def check(value=0):
        return value

    async def asave(self, state=None, gate=None):
        if gate is not None:
            await gate()
        return state

    def parts(self, count=3):
        total = 0
        for number in range(count):
            total += (yield number) or 0
        return total

    async def aparts(self, count=3):
        for number in range(count):
            yield number


class Special(Store):
    pass
