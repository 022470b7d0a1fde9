"""More classes of the family `Backend`."""

from toylib import Backend


class NullBackend(Backend):
    def put(self, key, value):
        return key
