"""Files of `torch.save`: the zip format since torch 1.6, and the older format. The pickle inside is followed, never unpickled."""

from __future__ import annotations

from typing import Final

from ckpt_observe.errors import IntegrityError
from ckpt_observe.readers import zip_directory
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents
from ckpt_observe.readers.pickle_calls import describe_storage
from ckpt_observe.readers.pickle_contents import to_contents
from ckpt_observe.readers.pickle_machine import PickleMachine
from ckpt_observe.readers.pickle_nodes import Composite
from ckpt_observe.readers.source import malformed
from ckpt_observe.readers.streams import file_stream, memory_stream
from ckpt_observe.readers.zip_directory import Member
from ckpt_observe.support.advice import add_advice

PICKLE: Final = "data.pkl"


def read_torch(candidate: Candidate) -> Contents:
    """Return the keys of a zip file. Tensors have the bytes of their storages; the first of those that share a storage has them."""
    source = candidate.source
    members = zip_directory.read_directory(source)
    pickle = next(member for name, member in members.items() if name.rpartition("/")[2] == PICKLE)
    folder = pickle.name.removesuffix(PICKLE)
    storages = _Storages(source.path, members, f"{folder}data/")
    stream = memory_stream(zip_directory.read_member(source, pickle), f"{pickle.name} in {source.path}")
    machine = PickleMachine(stream, source.limits, source.path, depth=candidate.request.depth, on_persistent=storages.describe)
    root = machine.run()
    version = members.get(f"{folder}version")
    text = zip_directory.read_start(source, version, 20).decode("latin1").strip() if version else ""
    size = max(source.size, sum(member.size for member in members.values()))  # a compressed file has more bytes inside
    return to_contents("torch", source, root, machine.imports, candidate.request.depth, size=size, version=text)


def read_legacy_torch(candidate: Candidate) -> Contents:
    """Return the keys of a file of torch before 1.6: four pickles, a list of storages, and their data."""
    source = candidate.source
    stream = file_stream(source)
    keys: set[str] = set()

    def describe(node: Composite) -> None:
        key, size = describe_storage(node)
        node.external = 0 if key in keys else size
        keys.add(key)

    machine = PickleMachine(stream, source.limits, source.path, depth=candidate.request.depth, on_persistent=describe)
    for _ in range(3):  # magic number, protocol, system
        machine.run()
    root = machine.run()
    machine.run()
    if stream.position + root.external > source.size:
        text = f"{source.path} is incomplete: its storages need {root.external} bytes after byte {stream.position}"
        raise IntegrityError(add_advice(text, "integrity.truncated"), code="integrity.truncated")
    return to_contents("torch-legacy", source, root, machine.imports, candidate.request.depth)


class _Storages:
    """The storages in a zip file."""

    def __init__(self, path: str, members: dict[str, Member], folder: str) -> None:
        self._path = path
        self._members = members
        self._folder = folder
        self._keys: set[str] = set()

    def describe(self, node: Composite) -> None:
        """Give a storage its bytes, the first time that it is used."""
        key, claimed = describe_storage(node)
        member = self._members.get(self._folder + key)
        if member is None:
            text = f"{self._path} has no data for the storage {key!r:.80}"
            raise IntegrityError(add_advice(text, "integrity.incomplete"), code="integrity.incomplete")
        if claimed > member.size:
            raise malformed(self._path, f"the storage {key!r:.80} has {member.size} bytes, and its tensors need {claimed}")
        node.digest = member.digest
        width = claimed // max(1, node.args[4].resolved.value)
        node.details = {"elements": member.size // max(1, width)}
        node.external = 0 if key in self._keys else member.size
        self._keys.add(key)
