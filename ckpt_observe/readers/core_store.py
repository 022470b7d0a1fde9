"""Stores of the reference core, through its own API, and its database files: everything is in the headers, so no payload is read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ckpt_observe.core.format.container import MAX_HEADER
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores.store import decode_headers
from ckpt_observe.core.stores.urls import open_store, path_to_url
from ckpt_observe.errors import CheckpointNotFoundError
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Breakdown, Contents, Entry, largest_first
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.selection import select_checkpoint
from ckpt_observe.readers.sqlite_database import open_database
from ckpt_observe.support.advice import add_advice

_HEADERS: Final = """
SELECT task, id, CASE WHEN length(header) <= :max THEN header END FROM checkpoints
WHERE :task IS NULL OR task = :task ORDER BY created DESC, id DESC
"""


def read_file_store(candidate: Candidate) -> Contents:
    """Read a directory of `.ckpt` files."""
    return read_store(path_to_url("file", candidate.path), candidate.request)


def read_jsonl_store(candidate: Candidate) -> Contents:
    """Read a directory of JSON Lines files."""
    return read_store(path_to_url("jsonl", candidate.path), candidate.request)


def read_git_store(candidate: Candidate) -> Contents:
    """Read a directory of bare repositories."""
    return read_store(path_to_url("git", candidate.path), candidate.request)


def read_sqlite_store(candidate: Candidate) -> Contents:
    """Read a database file, with a connection that cannot change anything: the store itself would upgrade an old schema."""
    path, request = candidate.path, candidate.request
    with open_database(path, request.limits) as connection:
        infos = decode_headers(connection.execute(_HEADERS, {"task": request.task, "max": MAX_HEADER}))
    return _read_headers(infos, "sqlite", path_to_url("sqlite", path), request)


def read_store(url: str, request: ReadRequest) -> Contents:
    """Return the keys of all checkpoints in a store, of those of a task, or of a single one."""
    with open_store(url) as store:
        return _read_headers(store.find(Query(task=request.task)), store.kind, store.location, request)


def _read_headers(infos: Sequence[CheckpointInfo], kind: str, location: str, request: ReadRequest) -> Contents:
    if request.task is not None and not infos:
        text = f"{request.task!r} has no readable checkpoint in {location}"
        raise CheckpointNotFoundError(add_advice(text, "not_found.checkpoint"))
    if request.task is not None and request.checkpoint is not None:
        return _read_checkpoint(select_checkpoint(infos, request.task, request.checkpoint), kind, location, request.depth)
    return _read_checkpoints(infos, kind, location, request)


def _read_checkpoint(info: CheckpointInfo, kind: str, location: str, depth: int) -> Contents:
    entries = [_key_entry(info, name) for name in info.keys]
    elsewhere = sum(key.size for key in info.keys.values() if key.base)  # values that earlier checkpoints hold
    size = info.serialized_size + elsewhere
    return Contents(
        format=kind,
        location=location,
        size=size,
        entries=largest_first(entries),
        other_size=size - sum(entry.size for entry in entries),
        stored_size=info.stored_size,
        warnings=tuple(_warnings([info], depth)),
        metadata={**_details(info), "state_type": info.state_type, "items": info.items, "depth": info.depth, "metadata": info.metadata},
        version=str(info.version),
    )


def _read_checkpoints(infos: Sequence[CheckpointInfo], kind: str, location: str, request: ReadRequest) -> Contents:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    types: dict[str, str] = {}
    for info in infos:
        for name, key in info.keys.items():
            types.setdefault(name, key.type)
            counts[name] += 1
            sizes[name] += 0 if key.base else key.size
    size = sum(info.serialized_size for info in infos)
    keys = [Entry(name=name, type=types[name], size=sizes[name], details={"checkpoints": counts[name]}) for name in counts]
    return Contents(
        format=kind,
        location=location,
        size=size,
        entries=largest_first(keys),
        other_size=size - sum(sizes.values()),
        stored_size=sum(info.stored_size for info in infos),
        breakdowns=_breakdowns(infos, request),
        repeated_size=_repeated_size(infos),
        prunable_size=_prunable_size(infos),
        warnings=tuple(_warnings(infos, request.depth)),
    )


def _breakdowns(infos: Sequence[CheckpointInfo], request: ReadRequest) -> tuple[Breakdown, ...]:
    tasks, steps = (_group(infos, attribute) for attribute in ("task", "step"))
    checkpoints = tuple(
        Entry(
            name=info.id,
            type="checkpoint",
            size=info.serialized_size,
            items=len(info.keys),
            digest=info.digest,
            details=_details(info),
            children=largest_first(_key_entry(info, name) for name in info.keys) if request.depth > 1 else (),
        )
        for info in infos
    )
    return Breakdown("task", tasks, 0), Breakdown("step", steps, 0), Breakdown("checkpoint", checkpoints, 0)


def _group(infos: Iterable[CheckpointInfo], attribute: str) -> tuple[Entry, ...]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for info in infos:
        name = str(getattr(info, attribute))
        sizes[name] += info.serialized_size
        counts[name] += 1
    return largest_first(Entry(name=name, type=attribute, size=sizes[name], items=count) for name, count in counts.items())


def _key_entry(info: CheckpointInfo, name: str) -> Entry:
    key = info.keys[name]
    return Entry(name=name, type=key.type, size=key.size, digest=key.digest, details={"base": key.base} if key.base else {})


def _details(info: CheckpointInfo) -> dict[str, str | int]:
    details: dict[str, str | int] = {
        "task": info.task,
        "id": info.id,
        "created": info.created.isoformat(),
        "status": info.status,
        "format": info.format,
        "codec": info.codec,
        "stored_size": info.stored_size,
    }
    node = info.metadata.get("node")
    optional = {
        "step": info.step,
        "node": node if isinstance(node, str) else None,
        "parent": info.parent,
        "cipher": info.cipher or None,
        "tags": ", ".join(info.tags) or None,
    }
    return details | {name: value for name, value in optional.items() if value is not None}


def _repeated_size(infos: Sequence[CheckpointInfo]) -> int:
    """Return the bytes of values whose digest the previous checkpoint of the task has, too."""
    size = 0
    previous: dict[str, CheckpointInfo] = {}
    for info in reversed(infos):
        earlier = previous.get(info.task)
        for name, key in info.keys.items():
            if earlier and key.digest and not key.base and name in earlier.keys and earlier.keys[name].digest == key.digest:
                size += key.size
        previous[info.task] = info
    return size


def _prunable_size(infos: Sequence[CheckpointInfo]) -> int:
    """Return the stored bytes of all checkpoints except the newest of each task and those that it builds on."""
    needed: defaultdict[str, set[str]] = defaultdict(set)
    for info in infos:  # newest first
        if info.task not in needed:
            needed[info.task] = {info.id, *info.bases}
    return sum(info.stored_size for info in infos if info.id not in needed[info.task])


def _warnings(infos: Iterable[CheckpointInfo], depth: int) -> Iterator[str]:
    if any(info.format == "pickle" for info in infos):
        yield "a state is a pickle: loading it imports and runs what the pickle names. Load it only if you trust its writer"
    if depth > 1:
        yield "headers describe only the top-level keys, so nothing below them is shown; `ckpt-observe extract` prints the state"
