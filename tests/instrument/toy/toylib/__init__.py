"""A library with one callable of each kind. It does not know that it is observed."""

import json
from concurrent.futures import Future
from typing import Protocol


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


def export(state):
    return json.dumps(state)


class Backend:
    """A family: what is stored is the business of its subclasses."""

    def put(self, key, value):
        raise NotImplementedError

    def get(self, key):
        raise NotImplementedError


class DictBackend(Backend):
    def __init__(self):
        self.values = {}

    def put(self, key, value):
        self.values[key] = value
        return key

    def get(self, key):
        return self.values[key]


class LoudBackend(DictBackend):
    def put(self, key, value):
        return super().put(key, value.upper())


class Codec(Protocol):
    """A family that nobody has to inherit from."""

    def encode(self, value): ...


class JsonCodec:
    def encode(self, value):
        return json.dumps(value)


class Pipe:
    """Uses any codec."""

    def __init__(self, codec=None):
        self.codec = codec

    def send(self, value):
        return self.codec.encode(value)
