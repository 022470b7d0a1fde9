"""Checkpoints in object stores: `s3://bucket/prefix`, `gs://`, `az://`. Extra `objects` (obstore).

One object each, written whole with "create only", so a reader sees all of a checkpoint or nothing and an id is won by one
writer. When `put` returns, the service has acknowledged it. Credentials and endpoint come from the environment, as the
service's own tools take them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`...). Listing reads the head of each object it has not seen.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.names import from_file_name, id_to_file_name, known_as, to_file_name
from ckpt_observe.core.stores.base import Promise, Store, newest_first, own
from ckpt_observe.core.stores.headers import Headers
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, CompatibilityError, IntegrityError, MissingExtraError

try:
    import obstore
    from obstore import exceptions
    from obstore.store import from_url
except ImportError as error:
    raise MissingExtraError("object stores", "objects") from error

from ckpt_observe.core.stores import objecterrors  # which needs them too

_SUFFIX = ".ckpt"
_QUARANTINED = ".bad"
_HEAD = 16 * 1024
_SECONDS = 30
"""A request may take so long, and what is large longer by the time that a slow line needs for it."""
_BYTES_A_SECOND = 256 * 1024
_PART = 8 * 1024 * 1024
"""What is larger is read in parts of this size, each a request of its own."""
_LARGEST = {"s3": 5 << 30, "gs": 5 << 40, "az": 5000 << 20}
"""Bytes that the service takes in one request."""
_COARSE = dt.timedelta(seconds=1)
"""Services tell when an object was written to the second. In doubt what is damaged counts as the newer."""
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_UNREADABLE = (IntegrityError, CompatibilityError)


class ObjectStore(Store):
    """Objects under a prefix."""

    promise = Promise(durable="machine", shared="hosts", ranged=True)

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        super().__init__(f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}")
        self.kind = scheme
        self.promise = self.promise._replace(largest=_LARGEST.get(scheme))
        self._url = url
        self._bucket = self._open(_SECONDS)
        self._headers = Headers()

    def _open(self, seconds: float) -> Any:
        retries = {"max_retries": 0, "retry_timeout": dt.timedelta(seconds=seconds)}  # who wants retries wraps the store
        plain = os.environ.get(_ALLOW_HTTP.get(self.kind, ""), "").lower() == "true"  # options given here hide that variable from obstore
        with objecterrors.translated("opening", self.location):
            return from_url(self._url, client_options={"timeout": f"{round(seconds * 1000)}ms", "allow_http": plain}, retry_config=retries)

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        size, largest = len(blob), self.promise.largest
        if largest is not None and size > largest:
            text = f"a checkpoint of {size} bytes is more than the {largest} that {self.location} takes: save the state in parts"
            raise CapacityError(text, code="storage.too_large")
        with objecterrors.translated(f"saving checkpoint {info.id!r} of {info.task!r}", self.location):
            bucket = self._bucket if size <= _PART else self._open(_SECONDS + size / _BYTES_A_SECOND)
            obstore.put(bucket, _path(info.task, info.id), bytes(blob), mode="create")

    def get(self, task: str, id: str) -> Buffer:
        with self._found(task, id):
            path = _path(task, id)
            data = bytearray(part := self._range(path, 0, _PART))
            while len(part) == _PART:
                data += (part := self._range(path, len(data), _PART))
            return data

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        with self._found(task, id):
            return self._range(_path(task, id), start, size)

    def info(self, task: str, id: str) -> CheckpointInfo:
        with self._found(task, id):
            return self._header(_path(task, id))

    def size(self, task: str, id: str) -> int:
        with self._found(task, id):
            return int(obstore.head(self._bucket, _path(task, id))["size"])

    def delete(self, task: str, id: str) -> None:
        with self._found(task, id):
            obstore.head(self._bucket, _path(task, id))  # services answer a delete of nothing with success
            obstore.delete(self._bucket, _path(task, id))

    def quarantine(self, task: str, id: str) -> None:
        with self._found(task, id):
            aside = f"{_path(task, id).removesuffix(_SUFFIX)}.{secrets.token_hex(4)}{_QUARANTINED}"
            obstore.rename(self._bucket, _path(task, id), aside)

    def list(self, task: str) -> CheckpointInfos:
        return sorted(map(own, self._readable(self._objects(task))), key=newest_first, reverse=True)

    def ids(self, task: str) -> tuple[str, ...]:
        """Only the header knows an id that is too long for a name: of a damaged one, what stands for it."""
        names = [_name_of(entry) for entry in self._objects(task)]
        listed = {id_to_file_name(info.id): info.id for info in self.list(task)} if any("~" in name for name in names) else {}
        return tuple(listed.get(name) or known_as(name) for name in names)

    def newest(self, task: str) -> str | None:
        """An object whose header does not read counts from when it was written."""
        times: list[tuple[dt.datetime, str]] = []
        for entry in self._objects(task):
            try:
                info = self._known_header(entry)
                times.append((info.created, info.id))
            except CheckpointNotFoundError:
                continue  # removed since it was listed
            except _UNREADABLE:
                times.append((entry["last_modified"] + _COARSE, known_as(_name_of(entry))))
        return max(times)[1] if times else None

    def tasks(self) -> tuple[str, ...]:
        with objecterrors.translated("listing tasks", self.location):
            names = {entry["path"].rpartition("/")[0] for batch in obstore.list(self._bucket) for entry in batch if _is_ours(entry)}
        return tuple(sorted(task for name in names if (task := self._task_of(name)) is not None))

    def _task_of(self, name: str) -> str | None:
        task = from_file_name(name)
        if task is not None:
            return task
        return next((info.task for info in self._readable(self._entries(name))), None)

    def _objects(self, task: str) -> Any:
        return self._entries(to_file_name(task))

    def _entries(self, folder: str) -> Any:
        with objecterrors.translated("listing checkpoints", self.location):
            entries = [entry for batch in obstore.list(self._bucket, prefix=folder) for entry in batch if _is_ours(entry)]
        self._headers.forget_others(folder, [_split(entry)[1] for entry in entries])
        return entries

    def _readable(self, entries: Any) -> Iterator[CheckpointInfo]:
        """The headers that are not damaged, nor gone since they were listed."""
        for entry in entries:
            try:
                yield self._known_header(entry)
            except (*_UNREADABLE, CheckpointNotFoundError):
                continue

    def _known_header(self, entry: Any) -> CheckpointInfo:
        path, mark = entry["path"], entry.get("e_tag") or str(entry["last_modified"])
        with objecterrors.translated("reading a header", self.location):
            try:
                return self._headers.get(*_split(entry), mark, lambda: self._header(path))
            except FileNotFoundError as error:
                raise CheckpointNotFoundError(f"{path} was removed meanwhile") from error

    def _header(self, path: str) -> CheckpointInfo:
        start = b""
        size = _HEAD
        while b"\n" not in start and len(start) < container.MAX_HEADER:
            more = self._range(path, len(start), size)
            start += more
            if len(more) < size:
                break
            size = len(start)
        return container.read_header(start)

    def _range(self, path: str, start: int, size: int) -> bytes:
        """Fewer bytes where the object ends before, or none."""
        try:
            return bytes(obstore.get_range(self._bucket, path, start=start, length=size)) if size else b""
        except exceptions.GenericError as error:
            if objecterrors.is_beyond(error):
                return b""
            raise

    @contextmanager
    def _found(self, task: str, id: str) -> Iterator[None]:
        with objecterrors.translated(f"checkpoint {id!r} of {task!r}", self.location):
            try:
                yield
            except FileNotFoundError as error:
                if objecterrors.lacks_bucket(error):
                    raise
                raise CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self.location}") from error


def _path(task: str, id: str) -> str:
    return f"{to_file_name(task)}/{id_to_file_name(id)}{_SUFFIX}"


def _split(entry: Any) -> tuple[str, str]:
    """Folder and name."""
    folder, _, name = entry["path"].rpartition("/")
    return folder, name


def _name_of(entry: Any) -> str:
    return _split(entry)[1].removesuffix(_SUFFIX)


def _is_ours(entry: Any) -> bool:
    """Whether it lies where a checkpoint does: in a folder, and not deeper."""
    return bool(entry["path"].endswith(_SUFFIX) and entry["path"].count("/") == 1)
